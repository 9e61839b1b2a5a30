from __future__ import annotations

from typing import Any

import pytest
import torch

from dpdoctor.worker.wrap.entered import Entered, Labels, are_one, are_same, are_same_labels, copies

ONE, OTHER = torch.arange(6.0), torch.arange(1.0, 7.0)


def told(*steps: list[torch.Tensor]) -> list[int]:
    """Return what a rank tells after steps whose forwards got these tensors."""
    entered = Entered()
    for tensors in steps:
        for tensor in tensors:
            entered.forward([tensor])
        entered.step_ended()
    return entered.told()


def test_ranks_that_train_on_the_same_tensors_are_found() -> None:
    assert are_same([told([ONE], [OTHER]), told([ONE.clone()], [OTHER])])


def test_one_tensor_that_differs_in_one_step_of_one_rank_is_enough() -> None:
    same = told([ONE], [OTHER], [ONE])
    for another in (told([ONE], [OTHER], [OTHER]), told([ONE], [ONE], [ONE]), told([OTHER], [ONE], [ONE])):
        assert not are_same([same, same, another])


def test_noise_of_the_same_seed_beside_data_that_differ_is_not_the_same() -> None:
    noise = torch.ones(3)
    assert not are_same([told([noise, ONE], [noise, OTHER]), told([noise, OTHER], [noise, ONE])])


def test_a_forward_in_eval_mode_counts_where_a_backward_pass_follows_it() -> None:
    def tell(*forwards: tuple[torch.Tensor, bool]) -> Entered:
        states = {"numpy": 0}
        entered = Entered(lambda: dict(states))
        for _ in range(2):
            for tensor, in_eval_mode in forwards:
                states["numpy"] += 0 if in_eval_mode else 1
                entered.forward([tensor], in_eval_mode=in_eval_mode)
            entered.backward_ended()
            entered.forward([OTHER], in_eval_mode=True)
            entered.step_ended()
        return entered

    trains, evaluates = (ONE, False), (OTHER, True)
    assert tell(evaluates, trains).told() == tell(trains).told()
    assert tell(evaluates, trains).drawn == tell(trains).drawn == {"numpy": 2}
    assert tell((ONE, True)).told() != tell(evaluates).told()
    assert tell(trains, evaluates).told() != tell(trains).told()


def test_a_training_forward_lets_go_of_its_own_modules_forwards_in_eval_mode_alone() -> None:
    def tell(of_eval: torch.Tensor, *, trained: int) -> tuple[list[int], dict[str, int]]:
        states = {"numpy": 0}
        entered = Entered(lambda: dict(states))
        states["numpy"] = 1  # picks the samples
        entered.forward([of_eval], 1, in_eval_mode=True)
        states["numpy"] = 2  # noise
        entered.forward([ONE], trained)
        entered.backward_ended()
        drawn = entered.drawn
        entered.step_ended()
        return entered.told(), drawn

    assert tell(ONE, trained=1) == tell(OTHER, trained=1)
    assert tell(ONE, trained=2)[0] != tell(OTHER, trained=2)[0]
    assert tell(ONE, trained=2)[1] == {"numpy": 1}


def test_shapes_count() -> None:
    assert not are_same([told([ONE], [OTHER]), told([ONE], [OTHER.reshape(2, 3)])])


def test_one_batch_for_ever_is_the_same_on_all_ranks() -> None:
    assert are_same([told([ONE], [ONE]), told([ONE], [ONE])])
    assert not are_same([told([ONE], [ONE]), told([OTHER], [OTHER])])


def test_one_rank_and_one_step_tell_nothing() -> None:
    assert not are_same([told([ONE], [OTHER])])
    assert not are_same([told([ONE]), told([ONE])])
    assert not are_same([told([], []), told([], [])])


def test_of_a_large_tensor_elements_are_read_from_all_of_it() -> None:
    large = torch.zeros(3_000_000)
    changed = large.clone()
    changed[-600_000:] = 1
    assert told([large]) != told([changed])


def test_every_type_of_tensor_is_read() -> None:
    for dtype in (torch.bool, torch.uint8, torch.int64, torch.float16, torch.bfloat16, torch.float64, torch.complex64):
        zeros, ones = torch.zeros(3, dtype=dtype), torch.ones(3, dtype=dtype)
        assert told([zeros]) != told([ones])
        assert told([zeros[:0]]) == told([ones[:0]])


def test_one_and_the_same_batch_in_every_step_of_every_rank() -> None:
    assert are_one([told([ONE], [ONE]), told([ONE], [ONE])])
    assert not are_one([told([ONE], [OTHER]), told([ONE], [OTHER])])
    assert not are_one([told([ONE], [ONE]), told([OTHER], [OTHER])])
    assert not are_one([told([ONE], [ONE])])


def held_to(*targets: torch.Tensor, states: dict[str, int] | None = None, handed: bool = False) -> Labels:
    """Return what is known of labels after steps whose losses were held to these targets."""
    states = states or {}
    entered = Entered(lambda: dict(states))
    entered.begin_anew()
    entered.is_on = True
    for target in targets:
        states.update({name: state + 1 for name, state in states.items()})
        entered.forward([torch.rand(4)])
        if handed:
            entered.handed([torch.zeros(2)])
        entered.held_to([target])
        entered.step_ended()
    return entered.labels


def test_targets_of_losses_are_labels_where_no_loader_gives_any() -> None:
    classes = [torch.randint(10, (32,)) for _ in range(3)]
    values = [torch.rand(32, dtype=torch.float64) for _ in range(3)]
    for targets in (classes, values):
        same, other = held_to(*targets).told(), held_to(*targets[::-1]).told()
        assert are_same_labels([same, held_to(*targets).told()])
        assert not are_same_labels([same, other])
    assert not are_same_labels([held_to(*[torch.ones(32)] * 3).told()] * 2)


def test_targets_that_may_be_drawn_or_are_a_loaders_are_no_labels() -> None:
    targets = [torch.randint(10, (32,)) for _ in range(3)]
    assert held_to(*targets, states={"torch": 0}).num == 0
    assert held_to(*targets, handed=True).told() == held_to(*[torch.ones(1)] * 3, handed=True).told()


REAL, FAKE = torch.ones(32), torch.zeros(32)


@pytest.mark.parametrize(
    "targets",
    [
        [torch.cat((REAL, FAKE)), REAL] * 3,
        [torch.cat((REAL, FAKE)), torch.ones(64)] * 3,
        [torch.cat((REAL * smooth, FAKE)) for smooth in (1.0, 0.9, 0.8)],
        [torch.arange(size) for size in (64, 40, 64, 64, 40)],
        [torch.arange(first, first + 64) for first in range(4)],
    ],
    ids=["GAN", "GAN in one shape", "smoothed", "contrastive with a short batch", "time"],
)
def test_targets_that_the_script_makes_up_are_no_labels(targets: list[torch.Tensor]) -> None:
    told = held_to(*targets).told()
    assert not are_same_labels([told, told])


class Refusing(torch.Tensor):
    """A class of tensors that nobody may look at, above autograd."""

    @classmethod
    def __torch_function__(cls, func: Any, *_: Any) -> Any:
        raise TypeError(f"no {func}")


class RefusingBelow(torch.Tensor):
    """Or below it."""

    @staticmethod
    def __new__(cls, like: torch.Tensor) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, like.shape, dtype=like.dtype)

    @classmethod
    def __torch_dispatch__(cls, func: Any, *_: Any) -> Any:
        raise TypeError(f"no {func}")


@pytest.mark.parametrize("of_class", [lambda tensor: tensor.as_subclass(Refusing), RefusingBelow])
def test_targets_and_labels_of_a_class_that_refuses_to_be_looked_at_raise_nothing(of_class: Any) -> None:
    of_losses, of_batches = held_to(of_class(torch.rand(4)), of_class(torch.arange(4))), Labels()
    of_batches.handed([of_class(torch.arange(4))])
    assert (of_losses.num, of_batches.num) == (2, 1)


def test_what_each_step_draws_before_its_first_forward_is_told() -> None:
    states = {"torch": 0, "numpy": 0, "random": 0}
    entered = Entered(lambda: dict(states))
    entered.begin_anew()
    for number in range(3):
        assert bool(entered.told_drawn()) is (number > 0)
        states["numpy"] += 1  # picks the samples
        states["random"] += number == 0  # once, at the beginning
        for _ in range(2):
            entered.forward([ONE])
            states["torch"] += 1  # dropout
        entered.step_ended()
    assert entered.drawn == {"numpy": 3}
    entered.forward([ONE])
    assert entered.drawn == {}


def test_groups_of_ranks_that_train_on_the_same_are_counted() -> None:
    one, other = told([ONE], [OTHER]), told([OTHER], [ONE])
    assert copies([one, one, other, other]) == 2
    assert copies([one, other, one]) == 0  # unlike
    assert copies([one, told([ONE], [ONE, OTHER])]) == 1
    assert copies([one, one]) == 1  # that all are alike is known by are_same


def test_tensors_that_are_conjugated_when_they_are_read_are_read() -> None:
    entered = Entered()
    z = torch.randn(3, dtype=torch.complex64)
    for tensors in ([z.conj()], [z.conj().imag]):
        entered.forward(tensors)
        entered.step_ended()
    assert entered.num_steps == 2


def of_labels(*batches: Any) -> list[int]:
    """Return what a rank tells after batches with these labels, and images that augmentation made other ones."""
    labels = Labels()
    for batch in batches:
        labels.handed([torch.rand(3), batch])
    return labels.told()


def test_ranks_with_the_same_labels_have_the_same_samples_where_that_is_no_chance() -> None:
    draws = torch.Generator().manual_seed(1)
    one, other, third = (torch.randint(10, (32,), generator=draws) for _ in range(3))
    assert are_same_labels([of_labels(one, other), of_labels(one, other)])
    assert not are_same_labels([of_labels(one, other), of_labels(one, third)])
    assert not are_same_labels([of_labels(one, other)]), "one rank"


@pytest.mark.parametrize(
    "batches",
    [
        [torch.arange(64), torch.arange(64)],  # as in every batch, perhaps
        [torch.zeros(64, dtype=torch.long), torch.ones(64, dtype=torch.long)],  # sorted
        [torch.tensor([1, 2, 3, 4]), torch.tensor([4, 1, 3, 2])],  # few
        [torch.rand(64), torch.rand(64)],
        [],
    ],
)
def test_labels_that_ranks_may_share_by_chance_tell_nothing(batches: list[torch.Tensor]) -> None:
    assert not are_same_labels([of_labels(*batches), of_labels(*batches)])


def test_a_counter_beside_labels_that_stay_does_not_make_them_vary() -> None:
    batches = [{"place": torch.arange(64), "step": torch.tensor([number])} for number in range(9)]
    assert not are_same_labels([of_labels(*batches), of_labels(*batches)])


def given(*batches: Any, ahead: bool = False) -> int:
    """Return what a rank tells of all in these batches."""
    entered = Entered()
    entered.is_on = True
    for batch in batches:
        entered.handed(batch, ahead=ahead)
    entered.step_ended()
    return entered.given


def test_batches_are_others_by_their_largest_tensor_where_the_thread_that_trains_took_them() -> None:
    now, later = torch.tensor([1.0]), torch.tensor([2.0])
    assert given([ONE, now]) == given([ONE, later]) != given([OTHER, now])
    assert given([ONE, now], [OTHER, now]) != given([ONE, now])
    assert given([ONE, now], ahead=True) == given()
    mask = torch.ones_like(ONE)
    assert given([ONE, mask]) != given([OTHER, mask])


def test_what_a_rank_receives_into_its_batch_is_given() -> None:
    entered, batch = Entered(), ONE.clone()
    entered.is_on = True
    entered.handed([batch])
    batch.copy_(OTHER)
    entered.forward([batch])
    batch.zero_()
    assert entered.given == given([OTHER])


@pytest.mark.filterwarnings("ignore:.*quantize:UserWarning", "ignore:.*quantize:DeprecationWarning")
def test_batches_of_tensors_whose_bits_cannot_be_read_raise_nothing() -> None:
    quantized = torch.quantize_per_tensor(torch.zeros(4), 0.1, 0, torch.qint8)
    assert given([quantized, torch.zeros(4, device="meta")]) == given()


def test_labels_are_read_in_steps_that_are_told_alone_and_forgotten_with_what_entered() -> None:
    entered = Entered()
    entered.handed([torch.arange(64)])
    assert entered.labels.told() == [0, 0, 0]
    entered.is_on = True
    entered.handed([torch.arange(64)])
    assert entered.labels.num == 1
    entered.begin_anew()
    assert entered.labels.told() == [0, 0, 0]
