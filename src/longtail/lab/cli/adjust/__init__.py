"""``longtail adjust``: the options, what they ask for, and the logic and screen for each kind of labels."""
