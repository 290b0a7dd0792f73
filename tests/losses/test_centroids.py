"""Moving averages of the embeddings of each class, and contrasts with them."""

import math

import torch

from longtail.losses import ClassCentroids, balanced_contrastive

C = 5


def test_centroids_are_a_moving_average_of_batch_means(make_embeddings):
    centroids = ClassCentroids(C, momentum=0.8)
    (x, y), (later, _) = make_embeddings(), make_embeddings(seed=1)
    centroids.update(x, y)
    found = centroids.update(later, y)
    for c in (0, 1, 2, 3):
        wanted = 0.8 * x[y == c].mean(dim=0) + 0.2 * later[y == c].mean(dim=0)
        torch.testing.assert_close(found[c], wanted)
    assert (found[4] == 0).all()


def test_balanced_contrastive_as_loops_compute_it():
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(7, 4, generator=generator, dtype=torch.float64)
    target = torch.tensor([0, 0, 0, 1, 1, 3, 0])
    centroids = torch.randn(5, 4, generator=generator, dtype=torch.float64)
    centroids[4] = 0  # not seen yet
    values = balanced_contrastive(x, target, centroids, temperature=0.5)
    for i in range(7):
        cosine = torch.nn.functional.cosine_similarity
        members = {c: [centroids[c]] for c in range(4)}
        for k in range(7):
            if k != i:
                members[int(target[k])].append(x[k])
        scores = {c: [float(cosine(x[i], m, dim=0)) / 0.5 for m in rows] for c, rows in members.items()}
        total = sum(sum(map(math.exp, row)) / len(row) for row in scores.values())
        own = scores[int(target[i])]
        assert abs(float(values[i]) - sum(math.log(total) - s for s in own) / len(own)) < 1e-10
    assert torch.autograd.gradcheck(
        lambda points: balanced_contrastive(points, target, centroids, 0.5), x.requires_grad_()
    )


def test_a_frequent_class_weighs_no_more_than_a_rare_one_as_a_negative():
    """Copies of a negative change nothing, where the unbalanced loss grows with them."""
    x = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0]])
    target = torch.tensor([0, 0, 1])
    centroids = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    many = torch.cat([x, x[2:].expand(20, -1)]), torch.cat([target, target[2:].expand(20)])
    few = balanced_contrastive(x, target, centroids)[:2]
    torch.testing.assert_close(balanced_contrastive(*many, centroids)[:2], few)
