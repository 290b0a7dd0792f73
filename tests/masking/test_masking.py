"""Partial label masking against loops from the paper's formulas."""

import copy
import math
import warnings
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longtail import ClassPrior, PartialLabelMasking, get_method
from longtail.losses import (
    DistributionBalancedLoss,
    MultilabelLoss,
    asymmetric_loss,
    binary_cross_entropy,
    binary_focal_loss,
)
from longtail.masking import (
    MaskedLoss,
    adapt_ratio,
    count_bins,
    divergence,
    mask_probabilities,
    positive_ratio,
    standardize,
)
from longtail.masking.ratios import SMOOTHING

# Appendix B of the paper.
TOY_TARGETS = torch.tensor([1, 1, 1, 1, 1, 0, 0, 0, 0, 0])[:, None]
TOY_PROBS = torch.tensor([0.2, 0.6, 0.95, 0.99, 0.45, 0.1, 0.15, 0.8, 0.4, 0.3])[:, None]


@pytest.fixture
def double():
    """float64 buffers, to compare with loops at 1e-10."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def skewed(num_samples=400, num_classes=6, seed=0):
    """Targets whose labels are in 60 %, 30 %, 15 % ... of the samples, and probabilities that know a little."""
    generator = torch.Generator().manual_seed(seed)
    rates = 0.6 * 0.5 ** torch.arange(num_classes)
    targets = torch.rand(num_samples, num_classes, generator=generator) < rates
    noise = torch.rand(num_samples, num_classes, generator=generator, dtype=torch.float64)
    return targets.long(), 0.7 * noise + 0.3 * targets * rates.double()


def loop_divergence(histogram, target_bin):
    total = 0.0
    num_bins, count = len(histogram), sum(histogram)
    for index, value in enumerate(histogram):
        predicted = (value / count + SMOOTHING) / (1 + num_bins * SMOOTHING)
        wanted = ((1.0 if index == target_bin else 0.0) + SMOOTHING) / (1 + num_bins * SMOOTHING)
        total += predicted * math.log(predicted / wanted)
    return total


def loop_standardized(values):
    mean = sum(values) / len(values)
    deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / len(values))
    return [(value - mean) / deviation for value in values]


def loop_epoch(ratio, probs, targets, num_bins, rate):
    """Equations (4) to (7), one number at a time."""
    divergences = {0: [], 1: []}
    for c in range(targets.shape[1]):
        for label, target_bin in ((0, 0), (1, num_bins - 1)):
            histogram = [0] * num_bins
            for i in range(len(targets)):
                if int(targets[i, c]) == label:
                    histogram[min(num_bins - 1, int(float(probs[i, c]) * num_bins))] += 1
            divergences[label].append(loop_divergence(histogram, target_bin))
    positive, negative = loop_standardized(divergences[1]), loop_standardized(divergences[0])
    return [r * math.exp(rate * (p - n)) for r, p, n in zip(ratio, positive, negative, strict=True)]


class TestHistograms:
    def test_the_toy_example_of_the_paper_comes_out_exactly(self):
        negatives, positives = count_bins(TOY_PROBS, TOY_TARGETS, num_bins=4)
        assert positives.tolist() == [[1, 1, 1, 2]]
        assert negatives.tolist() == [[2, 2, 0, 1]]
        labels = count_bins(TOY_TARGETS.double(), TOY_TARGETS, num_bins=4)
        assert labels.tolist() == [[[5, 0, 0, 0]], [[0, 0, 0, 5]]]

    def test_its_divergences_are_those_of_its_distributions(self, double):
        negatives, positives = count_bins(TOY_PROBS, TOY_TARGETS, num_bins=4)
        shares = {"positive": [0.2, 0.2, 0.2, 0.4], "negative": [0.4, 0.4, 0.0, 0.2]}
        for name, histogram, target_bin in (("positive", positives, 3), ("negative", negatives, 0)):
            wanted = loop_divergence(shares[name], target_bin)
            assert divergence(histogram, target_bin)[0].item() == pytest.approx(wanted, abs=1e-10)

    def test_batches_add_up_to_the_whole(self):
        targets, probs = skewed()
        prior = ClassPrior.from_indicator(targets)
        whole, parts = PartialLabelMasking(prior), PartialLabelMasking(prior)
        whole.observe(probs, targets)
        for rows in torch.arange(len(targets)).split(37):
            parts.observe(probs[rows].float(), targets[rows].bool())
        assert torch.equal(whole.histogram, parts.histogram)
        assert whole.histogram.sum() == targets.numel()

    def test_the_ends_of_the_interval_belong_to_the_first_and_last_bin(self):
        counted = count_bins(torch.tensor([[0.0, 1.0]]), torch.tensor([[0, 1]]), num_bins=10)
        assert counted[0, 0, 0] == 1
        assert counted[1, 1, 9] == 1

    def test_indices_count_as_one_hot_rows(self):
        _, probs = skewed(num_samples=20)
        labels = torch.arange(20) % 6
        one_hot = torch.nn.functional.one_hot(labels, 6)
        assert torch.equal(count_bins(probs, labels, 5), count_bins(probs, one_hot, 5))

    def test_compiled_counting_has_a_fixed_shape_and_the_same_counts(self, monkeypatch):
        targets, probs = skewed()
        wanted = count_bins(probs, targets, 10)
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
        assert torch.equal(count_bins(probs, targets, 10), wanted)

    def test_nan_does_not_count_where_values_cannot_be_looked_at(self, monkeypatch):
        targets, probs = skewed()
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
        probs[targets[:, 0] == 1, 0] = math.nan
        counted = count_bins(probs, targets, 10)
        assert counted[1, 0].sum() == 0
        assert counted.sum() == targets.numel() - targets[:, 0].sum()


class TestRatios:
    def test_ratios_and_probabilities_of_masks_are_those_of_the_loops(self):
        targets, _ = skewed()
        prior = ClassPrior.from_indicator(targets)
        wanted_ratio = torch.linspace(0.05, 0.6, 6, dtype=torch.float64)
        found = positive_ratio(prior)
        keep_positive, keep_negative = mask_probabilities(found, wanted_ratio)
        for c in range(6):
            positives = sum(int(row[c]) for row in targets)
            r, t = positives / (len(targets) - positives), float(wanted_ratio[c])
            assert found[c].item() == pytest.approx(r, abs=1e-10)
            assert keep_positive[c].item() == pytest.approx(t / r if r > t else 1.0, abs=1e-10)
            assert keep_negative[c].item() == pytest.approx(r / t if r < t else 1.0, abs=1e-10)

    def test_epochs_of_adaptation_are_those_of_the_loops(self, double):
        prior = ClassPrior.from_indicator(skewed()[0])
        masking = PartialLabelMasking(prior, rate=0.3, num_bins=7)
        wanted = positive_ratio(prior).tolist()
        for seed in range(3):
            targets, probs = skewed(seed=seed)
            masking.observe(probs, targets)
            masking.adapt()
            wanted = loop_epoch(wanted, probs, targets, num_bins=7, rate=0.3)
            torch.testing.assert_close(masking.ratio, torch.tensor(wanted), rtol=1e-10, atol=1e-10)
        assert masking.ratio_history.shape == (4, 6)
        assert torch.equal(masking.ratio_history[-1], masking.ratio)
        assert not masking.histogram.any()

    def test_underpredicted_classes_gain_and_overpredicted_ones_lose(self):
        targets = torch.tensor([[1, 0], [1, 0], [1, 1], [0, 0]])
        masking = PartialLabelMasking(ClassPrior.from_indicator(targets), rate=0.1)
        masking.observe(torch.tensor([[0.9, 0.1], [0.95, 0.1], [0.99, 0.2], [0.8, 0.05]]), targets)
        masking.adapt()
        factors = (masking.ratio / masking.data_ratio).log().tolist()
        assert factors == pytest.approx([-0.2, 0.2], abs=1e-6)

    @pytest.mark.parametrize(("initial", "wanted"), [("mean", 1.0), ("min", 1 / 3), ("max", 5 / 3)])
    def test_initial_ratios_by_name(self, initial, wanted):
        prior = ClassPrior.from_indicator(torch.tensor([[1, 1], [1, 0]] * 2 + [[1, 0], [0, 0], [0, 0], [0, 0]]))
        assert PartialLabelMasking(prior).ratio.tolist() == pytest.approx([5 / 3, 1 / 3])
        assert PartialLabelMasking(prior, initial=initial).ratio.tolist() == pytest.approx([wanted] * 2)
        own = PartialLabelMasking(prior, initial=torch.tensor([0.5, 0.25]))
        assert own.ratio.tolist() == [0.5, 0.25]

    def test_ratios_stay_within_the_clip(self):
        targets, probs = skewed()
        prior = ClassPrior.from_indicator(targets)
        masking = PartialLabelMasking(prior, rate=50.0, clip=(0.1, 1.0))
        assert masking.ratio.max() == 1
        assert masking.ratio.min() == torch.tensor(0.1)
        masking.observe(probs, targets)
        masking.adapt()
        assert set(masking.ratio.tolist()) <= {torch.tensor(0.1).item(), 1.0}

    @pytest.mark.parametrize("clip", [None, (0.0, 1.0), (0.0, math.inf)])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_ratios_never_reach_zero_or_infinity(self, clip, dtype):
        targets, probs = skewed()
        masking = PartialLabelMasking(ClassPrior.from_indicator(targets), rate=500.0, clip=clip).to(dtype)
        for _ in range(3):
            masking.observe(probs, targets)
            masking.adapt()
        assert masking.ratio.isfinite().all()
        assert (masking.ratio > 0).all()
        assert masking.ratio.min() == torch.finfo(masking.ratio.dtype).tiny
        assert masking.ratio.max() == (1 if clip == (0.0, 1.0) else torch.finfo(masking.ratio.dtype).max)
        kept = masking.mask(targets)
        assert not (kept & (targets == 1))[:, masking.ratio == masking.ratio.min()].any()
        masking.rate = -masking.rate  # the way back is open
        masking.observe(probs, targets)
        before = masking.ratio.clone()
        masking.adapt()
        assert (masking.ratio > before)[before == before.min()].all()

    def test_initial_ratios_too_small_for_their_dtype_are_the_smallest_it_has(self):
        initial = torch.tensor([1e-60, 1e60], dtype=torch.float64)
        masking = PartialLabelMasking(ClassPrior.from_counts([3, 1]), initial=initial)
        assert masking.ratio.tolist() == [torch.finfo(torch.float32).tiny, torch.finfo(torch.float32).max]

    def test_a_class_not_seen_in_an_epoch_keeps_its_ratio_and_does_not_count(self):
        targets, probs = skewed()
        masking = PartialLabelMasking(ClassPrior.from_indicator(targets), rate=0.2)
        seen = targets.clone()
        seen[:, 5] = 0
        masking.observe(probs, seen)
        masking.adapt()
        assert masking.ratio[5] == masking.data_ratio[5]
        others = PartialLabelMasking(ClassPrior.from_indicator(targets[:, :5]), rate=0.2)
        others.observe(probs[:, :5], targets[:, :5])
        others.adapt()
        torch.testing.assert_close(masking.ratio[:5], others.ratio)

    def test_classes_that_are_alike_leave_ratios_alone(self):
        masking = PartialLabelMasking(ClassPrior.from_indicator(TOY_TARGETS.repeat(1, 3)), rate=1.0)
        masking.observe(TOY_PROBS.repeat(1, 3), TOY_TARGETS.repeat(1, 3))
        masking.adapt()
        assert torch.equal(masking.ratio, masking.data_ratio)

    @settings(deadline=None, max_examples=30)
    @given(values=st.lists(st.floats(0, 50), min_size=2, max_size=8), scale=st.floats(0.1, 10))
    def test_standardizing_forgets_scale_and_origin(self, values, scale):
        tensor = torch.tensor(values, dtype=torch.float64)
        result = standardize(tensor)
        assert abs(float(result.mean())) < 1e-6
        if tensor.std() > 1e-6:
            torch.testing.assert_close(standardize(tensor * scale + 3), result, rtol=1e-5, atol=1e-5)


class TestMasks:
    def test_masks_hit_the_wanted_ratio_in_expectation(self):
        targets, _ = skewed(num_samples=2000)
        prior = ClassPrior.from_indicator(targets)
        wanted = torch.tensor([0.3, 0.3, 0.3, 0.1, 0.1, 0.1])
        masking = PartialLabelMasking(prior, initial=wanted)
        generator = torch.Generator().manual_seed(1)
        kept = torch.zeros(2, 6)
        repetitions = 200
        for _ in range(repetitions):
            mask = masking.mask(targets, generator)
            kept += torch.stack([(mask & (targets == 0)).sum(0), (mask & (targets == 1)).sum(0)])
        # Relative standard error of a ratio of kept labels: at most sqrt(1 / kept) of the rarer kind.
        error = 5 / kept.amin(dim=0).sqrt()
        assert ((kept[1] / kept[0] / wanted - 1).abs() < error).all()
        assert (error < 0.15).all()

    @pytest.mark.parametrize("keep", [0.0005, 0.003, 0.25, 0.5, 0.999])
    def test_labels_stay_as_often_as_wanted_however_rarely_that_is(self, keep):
        # Half of the labels are positive: the data's ratio is 1, and positives stay with the ratio itself.
        targets = torch.arange(512)[:, None].expand(512, 200) % 2
        masking = PartialLabelMasking(ClassPrior.from_indicator(targets), initial=torch.full((200,), keep))
        generator = torch.Generator().manual_seed(2)
        stayed = sum(int(masking.mask(targets, generator)[1::2].sum()) for _ in range(40))
        draws = 40 * 256 * 200
        # Labels of one class share the rounding of their threshold in a step, which adds a little to the variance.
        error = math.sqrt(draws * keep * (1 - keep) + 40 * 200 * 256**2 / (4 * 256**2))
        assert abs(stayed - draws * keep) < 5 * error

    def test_labels_that_all_stay_do_so_in_every_draw(self):
        """Also for the largest dither, with which 256 rounds to 257."""
        targets = torch.zeros(10, 2000, dtype=torch.long)
        targets[:5] = 1
        masking = PartialLabelMasking(ClassPrior.from_indicator(targets), rate=0)
        generator = torch.Generator().manual_seed(0)
        assert all(masking.mask(targets, generator).all() for _ in range(300))

    def test_a_module_in_bfloat16_adapts_as_one_in_float32(self):
        generator = torch.Generator().manual_seed(0)
        rates = torch.tensor([0.6, 0.3, 0.1, 0.02])
        targets = (torch.rand(2000, 4, generator=generator) < rates).long()
        probs = (torch.randn(2000, 4, generator=generator) + targets + torch.logit(rates)).sigmoid()
        moved = []
        for dtype in (torch.float32, torch.bfloat16):
            masking = PartialLabelMasking(ClassPrior.from_indicator(targets), rate=0.5).to(dtype)
            masking.observe(probs, targets)
            masking.adapt()
            moved.append((masking.ratio / masking.data_ratio).float())
        assert moved[0].log().abs().max() > 0.3
        torch.testing.assert_close(moved[1], moved[0], rtol=0.02, atol=0.02)

    def test_only_one_kind_of_label_of_a_class_is_ever_masked(self):
        targets, _ = skewed()
        masking = PartialLabelMasking(ClassPrior.from_indicator(targets), initial="mean")
        dropped = torch.stack([~masking.mask(targets) for _ in range(20)]).any(dim=0)
        is_head = masking.data_ratio > masking.ratio
        assert not (dropped & (targets == 0))[:, is_head].any()
        assert not (dropped & (targets == 1))[:, ~is_head].any()
        assert dropped.any(dim=0).all()

    def test_the_data_ratio_masks_nothing_and_indices_will_do(self):
        labels = torch.arange(40) % 4
        masking = PartialLabelMasking(ClassPrior.from_labels(labels))
        assert masking.mask(labels).all()
        assert masking.mask(labels).shape == (40, 4)

    def test_a_generator_decides(self):
        targets, _ = skewed()
        masking = PartialLabelMasking(ClassPrior.from_indicator(targets), initial="mean")
        masks = [masking.mask(targets, torch.Generator().manual_seed(seed)) for seed in (0, 0, 1)]
        assert torch.equal(masks[0], masks[1])
        assert not torch.equal(masks[0], masks[2])

    def test_the_state_holds_everything(self):
        targets, probs = skewed()
        prior = ClassPrior.from_indicator(targets)
        masking = PartialLabelMasking(prior, rate=0.5)
        for _ in range(2):
            masking.observe(probs, targets)
            masking.adapt()
        masking.observe(probs, targets)
        other = PartialLabelMasking(prior, rate=0.5, initial="mean")
        other.load_state_dict(masking.state_dict())
        assert torch.equal(other.ratio_history, masking.ratio_history)
        for module in (masking, other):
            module.adapt()
        assert torch.equal(other.ratio, masking.ratio)
        assert "rate=0.5" in repr(masking)


class TestBadInput:
    def test_a_class_without_positives_or_negatives_is_said_and_left_unmasked(self):
        targets = torch.tensor([[1, 0, 1], [1, 0, 0], [1, 0, 0]])
        with pytest.warns(UserWarning, match="class 0 and 1 more have no positives or no negatives"):
            masking = PartialLabelMasking(ClassPrior.from_indicator(targets), initial="max")
        assert masking.undefined_classes.tolist() == [0, 1]
        masking.ratio[2] = 1e-6
        mask = masking.mask(targets)
        assert mask[:, :2].all()
        assert not mask[0, 2]
        masking.observe(torch.full((3, 3), 0.5), targets)
        masking.adapt()
        assert masking.ratio.isnan().tolist() == [True, True, False]

    def test_no_class_at_all_may_have_a_ratio(self):
        with pytest.warns(UserWarning, match="class 0 has no"):
            masking = PartialLabelMasking(ClassPrior.from_indicator([[1], [1]]), initial="mean")
        assert masking.mask(torch.ones(2, 1)).all()

    @pytest.mark.parametrize("bounds", [(1.0, 0.5), (0.5, 0.5), (-1.0, 1.0), (math.nan, 1.0), (0.0, 1.0, 2.0)])
    def test_clip_bounds_that_are_reversed_or_no_ratios(self, bounds):
        with pytest.raises(ValueError, match="clip must be"):
            PartialLabelMasking(ClassPrior.from_counts([3, 1]), clip=bounds)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"rate": -0.1}, "rate must be"),
            ({"rate": math.nan}, "rate must be"),
            ({"num_bins": 1}, "num_bins must be a whole number of at least 2"),
            ({"initial": "median"}, "one of data, mean, min, max"),
            ({"initial": torch.ones(3)}, r"must be \[2\] ratios"),
            ({"initial": torch.tensor([1.0, 0.0])}, "above 0. Got 0.0 for class 1"),
            ({"initial": torch.tensor([math.inf, 1.0])}, "finite"),
        ],
    )
    def test_settings(self, options, message):
        with pytest.raises(ValueError, match=message):
            PartialLabelMasking(ClassPrior.from_counts([3, 1]), **options)

    @pytest.mark.parametrize(
        ("targets", "message"),
        [
            (torch.tensor([[2, 0]]), "must be 0 or 1. Got 2"),
            (torch.tensor([[-1, 0]]), "must be 0 or 1. Got -1"),
            (torch.tensor([[0.5, 0.0]]), "must be 0 or 1. Got 0.5"),
            (torch.tensor([[math.nan, 0.0]]), "must be 0 or 1. Got nan"),
            (torch.tensor([[1, 0, 0]]), r"must be \[\w, 2\]"),
            (torch.tensor([5]), "target must be in 0..1"),
            (torch.tensor([0.5]), "class indices"),
        ],
    )
    def test_targets(self, targets, message):
        masking = PartialLabelMasking(ClassPrior.from_counts([3, 1]))
        logits = torch.zeros(1, 2)
        calls = [
            masking.mask,
            partial(masking.observe, logits.sigmoid()),
            partial(binary_focal_loss, logits),
            partial(asymmetric_loss, logits),
            partial(DistributionBalancedLoss(ClassPrior.from_counts([3, 1])), logits),
            partial(MaskedLoss(MultilabelLoss(), masking), logits),
        ]
        for call in calls:
            with pytest.raises(ValueError, match=message):
                call(targets)

    @pytest.mark.parametrize("wrong", [-0.1, 1.1, math.nan, math.inf])
    def test_probabilities(self, wrong):
        masking = PartialLabelMasking(ClassPrior.from_counts([3, 1]))
        with pytest.raises(ValueError, match=r"probabilities must be in \[0, 1\]. Got"):
            masking.observe(torch.tensor([[0.5, wrong]]), torch.tensor([[1, 0]]))
        assert not masking.histogram.any()

    def test_shapes_and_order_of_calls(self):
        masking = PartialLabelMasking(ClassPrior.from_counts([3, 1]))
        with pytest.raises(ValueError, match="call observe before"):
            masking.adapt()
        with pytest.raises(ValueError, match=r"expected \[N, 2\]"):
            masking.observe(torch.rand(2, 3), torch.ones(2, 3))
        with pytest.raises(TypeError, match="floating-point"):
            count_bins(torch.ones(2, 2, dtype=torch.int64), torch.ones(2, 2), 2)

    def test_rows_without_labels_count_as_negatives(self):
        logits, zeros = torch.zeros(2, 3), torch.zeros(2, 3)
        assert binary_cross_entropy(logits, zeros).exp().round().tolist() == [8, 8]
        prior = ClassPrior.from_indicator([[1, 0, 0], [0, 1, 0], [0, 0, 1], [0, 0, 0]])
        masking = PartialLabelMasking(prior)
        assert masking.mask(zeros).all()
        assert torch.isfinite(DistributionBalancedLoss(prior)(logits, zeros))
        masking.observe(logits.sigmoid(), zeros)
        assert masking.histogram[1].sum() == 0


class TestMaskedLoss:
    @pytest.fixture
    def prior(self):
        return ClassPrior.from_indicator(skewed()[0])

    @pytest.mark.parametrize("inner", ["binary_focal", "distribution_balanced", "balanced_sigmoid", "asymmetric"])
    def test_it_goes_around_any_loss_that_takes_a_mask(self, inner, prior):
        targets, probs = skewed()
        logits = probs.logit().requires_grad_()
        loss = MaskedLoss(get_method(inner).plan(prior).loss.double(), PartialLabelMasking(prior, initial="mean"))
        (gradient,) = torch.autograd.grad(loss(logits, targets), logits)
        untouched = gradient == 0
        assert 0.05 < untouched.double().mean() < 0.95
        loss.eval()
        torch.testing.assert_close(loss(logits, targets), loss.loss(logits, targets))

    def test_training_masks_and_observes_and_evaluation_does_neither(self, prior):
        targets, probs = skewed()
        loss = MaskedLoss(MultilabelLoss(), PartialLabelMasking(prior, initial="mean"))
        logits = probs.logit()
        masked = loss(logits, targets)
        assert masked < loss.loss(logits, targets)
        assert torch.equal(loss.masking.histogram, count_bins(probs, targets, 10))
        loss.eval()
        loss(logits, targets)
        assert loss.masking.histogram.sum() == targets.numel()

    def test_nan_logits_are_named_and_change_nothing(self, prior):
        targets, probs = skewed()
        loss = MaskedLoss(MultilabelLoss(), PartialLabelMasking(prior, initial="mean"))
        logits = probs.logit()
        logits[3, 2] = math.nan
        with pytest.raises(ValueError, match="logits must not be NaN"):
            loss(logits, targets)
        assert not loss.masking.histogram.any()
        wanted = MaskedLoss(MultilabelLoss(), PartialLabelMasking(prior, initial="mean"))
        assert loss(probs.logit(), targets) == wanted(probs.logit(), targets)

    def test_infinite_logits_are_sure_probabilities(self, prior):
        loss = MaskedLoss(MultilabelLoss(), PartialLabelMasking(prior))
        loss(torch.full((2, 6), -math.inf), torch.zeros(2, 6))
        assert loss.masking.histogram[0, :, 0].tolist() == [2] * 6

    def test_a_resumed_run_draws_the_same_masks(self, prior):
        targets, probs = skewed()
        logits = probs.logit()

        def epoch(loss):
            losses = [float(loss(logits, targets)) for _ in range(2)]
            loss.end_epoch()
            return losses

        plan = partial(get_method("partial_label_masking").plan, prior, rate=0.3, initial="mean")

        def build(**options):
            return plan(**options).loss

        loss = build()
        first = epoch(loss)
        state = copy.deepcopy(loss.state_dict())
        second = epoch(loss)
        resumed = build()
        resumed.load_state_dict(state)
        assert epoch(resumed) == second
        assert first[0] != first[1]
        assert build(seed=1)(logits, targets) != first[0]

    def test_rare_labels_gain_recall(self):
        """A linear model on overlapping labels: with masks, the rare ones are predicted more often."""
        generator = torch.Generator().manual_seed(0)
        targets = (torch.rand(2000, 3, generator=generator) < torch.tensor([0.6, 0.2, 0.03])).float()
        inputs = targets + 0.6 * torch.randn(2000, 3, generator=generator)
        prior = ClassPrior.from_indicator(targets)

        def recalls(loss):
            weight, bias = torch.zeros(3, 3, requires_grad=True), torch.zeros(3, requires_grad=True)
            optimizer = torch.optim.Adam([weight, bias], lr=0.1)
            for step in range(120):
                optimizer.zero_grad()
                loss(inputs @ weight + bias, targets).backward()
                optimizer.step()
                if step % 10 == 9 and hasattr(loss, "end_epoch"):
                    loss.end_epoch()
            predicted = (inputs @ weight + bias > 0).float()
            return (predicted * targets).sum(0) / targets.sum(0)

        plain, masked = recalls(MultilabelLoss()), recalls(
            MaskedLoss(MultilabelLoss(), PartialLabelMasking(prior, rate=0.2))
        )  # fmt: skip
        assert masked[2] > plain[2] + 0.05

    def test_no_warning_comes_from_a_step(self, prior):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            MaskedLoss(MultilabelLoss(), PartialLabelMasking(prior))(torch.zeros(2, 6), torch.zeros(2, 6))


def observe_half(rank):
    targets, probs = skewed()
    masking = PartialLabelMasking(ClassPrior.from_indicator(targets), rate=0.5)
    mine = slice(rank, None, 2)
    masking.observe(probs[mine], targets[mine])
    masking.adapt()
    loss = MaskedLoss(MultilabelLoss(), PartialLabelMasking(ClassPrior.from_indicator(targets), initial="mean"))
    return masking.ratio, float(loss(probs.logit(), targets))


def test_processes_adapt_to_what_all_of_them_saw(two_processes):
    (first, first_loss), (second, second_loss) = two_processes(observe_half)
    targets, probs = skewed()
    alone = PartialLabelMasking(ClassPrior.from_indicator(targets), rate=0.5)
    alone.observe(probs, targets)
    alone.adapt()
    assert torch.equal(first, alone.ratio)
    assert torch.equal(second, alone.ratio)
    assert first_loss != second_loss  # each draws masks of its own


def test_adapted_ratio_leaves_unknown_classes_alone():
    unknown = torch.tensor([1.0, 2.0, math.nan])
    assert adapt_ratio(torch.ones(3), unknown, unknown.flip(0).nan_to_num(1.0), 1.0)[2] == 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_ratios_stay_in_single_precision_in_a_model_of_half(dtype):
    """In bfloat16 a step of 0.1 % of a ratio is rounded away."""
    prior = ClassPrior.from_indicator([[1, 0]] * 3 + [[0, 1]] + [[0, 0]] * 5)
    masking, other = PartialLabelMasking(prior, rate=0.001), PartialLabelMasking(prior, rate=0.001)
    other.to(dtype)
    assert other.ratio.dtype == other.data_ratio.dtype == torch.float32
    probs, target = torch.tensor([[0.9, 0.2], [0.3, 0.6]]), torch.tensor([[1, 0], [0, 1]])
    for part in (masking, other):
        part.observe(probs, target)
        part.adapt()
    assert torch.equal(masking.ratio, other.ratio)
    assert not torch.equal(other.ratio, other.data_ratio)
    assert other.double().ratio.dtype == torch.float64
