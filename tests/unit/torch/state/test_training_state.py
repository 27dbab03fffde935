"""A joiner's training goes on exactly as the one whose state it took, and what two ranks built differently is named."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
import torch
from torch import nn

from elastic_launcher.torch.state.optimizer_state import SetOptions
from elastic_launcher.torch.state.tensors import digest
from elastic_launcher.torch.state.training_state import StateMismatch, TrainingState, forms
from elastic_launcher.torch.state.transfer import incoming, outgoing
from tests.support.trainings import KINDS, STEPS_AFTER, STEPS_BEFORE, Doubling, picture, trained


def _hand_over(sender: TrainingState, receiver: TrainingState) -> list[torch.Tensor]:
    """Does what `transfer` does, in one process; returns the receiver's tensors."""
    captured = sender.capture()
    header = json.loads(json.dumps(captured.header, allow_nan=False))
    targets = receiver.targets(header)
    messages = outgoing(forms(captured.header), captured.tensors)
    for message, (memory, put) in zip(messages, incoming(forms(header), targets), strict=True):
        memory.copy_(message)
        if put is not None:
            put()
    receiver.finish(header, targets)
    return targets


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("steps", [0, 2], ids=["new", "trained before"])
def test_the_receiver_trains_on_like_the_sender(kind: str, steps: int) -> None:
    sender, receiver = trained(kind, 1, STEPS_BEFORE), trained(kind, 2, steps)
    if kind == "group added" and steps == 0:
        assert len(receiver.state.optimizers[0].param_groups) == 1
    _hand_over(sender.state, receiver.state)
    assert picture(receiver) == picture(sender)
    for number in range(STEPS_BEFORE, STEPS_BEFORE + STEPS_AFTER):
        sender.step(number)
        receiver.step(number)
    assert picture(receiver) == picture(sender)


@pytest.mark.parametrize("kind", KINDS)
def test_memory_that_was_made_ready_is_used_and_nothing_of_it_is_left_over(kind: str) -> None:
    sender, receiver = trained(kind, 1, STEPS_BEFORE), trained(kind, 2, 0)
    wanted = json.loads(json.dumps(sender.state.outline()))
    receiver.state.reserve([[*theirs, ["nobody's", "x", "float32", [3]]] for theirs in wanted])
    parameters = receiver.state.outline()
    reserved = {
        values[name].data_ptr()
        for optimizer in receiver.state.optimizers
        for values in optimizer.state.values()
        for name in values
    }
    targets = {t.data_ptr() for t in _hand_over(sender.state, receiver.state)}
    assert reserved <= targets
    assert picture(receiver) == picture(sender)
    assert kind not in ("adam", "sgd with momentum", "tied") or parameters == wanted != [[]]


def _memory(state: TrainingState) -> set[int]:
    """Returns where the large tensors of a training lie."""
    optimizer = [v for o in state.optimizers for values in o.state.values() for v in values.values()]
    return {t.data_ptr() for t in (*state.models[0].parameters(), *optimizer)}


@pytest.mark.parametrize("kind", ["adam", "tied", "sgd with momentum"])
def test_state_goes_into_the_memory_that_is_there(kind: str) -> None:
    sender, receiver = trained(kind, 1, 2), trained(kind, 2, 2)
    before = _memory(receiver.state)
    targets = {t.data_ptr() for t in _hand_over(sender.state, receiver.state)}
    assert before <= targets and before == _memory(receiver.state)
    assert not {b.data_ptr() for b in receiver.state.models[0].buffers()} & targets, "forward passes write there"


def test_parameters_and_optimizer_state_are_not_copied_but_buffers_are() -> None:
    training = trained("adam", 1, 1)
    captured = training.state.capture()
    mine = {t.data_ptr() for t in captured.tensors}
    model, optimizer = training.state.models[0], training.state.optimizers[0]
    assert {p.data_ptr() for p in model.parameters()} <= mine
    assert {v.data_ptr() for values in optimizer.state.values() for v in values.values()} <= mine
    assert not {b.data_ptr() for b in model.buffers()} & mine


def test_tied_weights_and_shared_modules_travel_once() -> None:
    assert [name for name, _ in trained("tied", 1, 1).state.capture().header["parameters"]].count("first.weight") == 1
    shared = nn.Linear(2, 2)
    state = TrainingState([shared, nn.Sequential(shared)])
    assert [name for name, _ in state.capture().header["parameters"]] == ["model0.weight", "model0.bias"]


def test_a_scheduler_still_acts_on_its_optimizer_after_a_group_was_added() -> None:
    sender, receiver = trained("steps", 1, 1), trained("steps", 2, 1)
    held = receiver.state.optimizers[0].param_groups[0]
    _hand_over(sender.state, receiver.state)
    assert receiver.state.optimizers[0].param_groups[0] is held
    assert receiver.state.schedulers[0].optimizer is receiver.state.optimizers[0]


def test_options_that_the_script_sets_while_state_is_on_its_way_are_kept() -> None:
    """Also those that are set to the value that they have had: the peer's is that of the step before."""
    first, second = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(3))
    optimizer = torch.optim.Adam([{"params": [first]}, {"params": [second]}], lr=0.5, betas=(0.5, 0.75))
    one, other = optimizer.param_groups
    options = SetOptions([optimizer])
    one["lr"], other["betas"] = 0.5, (0.5, 0.75)
    with options.kept():
        for group in (one, other):
            group.update(lr=0.25, betas=(0.1, 0.2), weight_decay=0.125)
    assert (one["lr"], one["betas"], one["weight_decay"]) == (0.5, (0.1, 0.2), 0.125)
    assert (other["lr"], other["betas"], other["weight_decay"]) == (0.25, (0.5, 0.75), 0.125)


def test_a_whole_number_that_the_script_sets_to_what_it_was_is_kept() -> None:
    """Small whole numbers are one object each: that another one is there does not show."""
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(2))], lr=1)
    (group,) = optimizer.param_groups
    options = SetOptions([optimizer])
    group["lr"] = 1
    with options.kept():
        group.update(lr=0.5, momentum=0.25)
    assert (group["lr"], group["momentum"]) == (1, 0.25)


def test_writing_state_does_not_disturb_a_backward_pass_under_way() -> None:
    sender, receiver = trained("adam", 1, 2), trained("adam", 2, 0)
    loss = receiver.state.models[0](torch.randn(4, 16)).sum()
    _hand_over(sender.state, receiver.state)
    loss.backward()
    assert receiver.state.models[0][0].weight.grad is not None


def _linear(*sizes: int, dtype: torch.dtype = torch.float32) -> TrainingState:
    model = nn.Linear(*sizes, dtype=dtype)
    return TrainingState([model], [torch.optim.SGD(model.parameters(), lr=0.1)])


def _with_extra_parameter() -> TrainingState:
    state = _linear(3, 2)
    state.optimizers[0].add_param_group({"params": [nn.Parameter(torch.zeros(1))]})
    return state


def _with_registered() -> TrainingState:
    state = _linear(3, 2)
    state.register("average", nn.Linear(1, 1))
    return state


@pytest.mark.parametrize(
    ("sender", "receiver", "message"),
    [
        (_linear(3, 2), _linear(3, 5), r"weight is float32\[5, 3\] on this rank and float32\[2, 3\] on the rank that"),
        (_linear(3, 2, dtype=torch.float64), _linear(3, 2), r"weight is float32\[2, 3\] .* float64\[2, 3\]"),
        (TrainingState([nn.Linear(3, 2)]), _linear(3, 2), "this rank prepared 1 optimizers, the rank that .* 0"),
        (TrainingState([nn.Linear(3, 2)]), TrainingState([nn.Linear(3, 2, False)]), "parameter bias is only on the"),
        (TrainingState([nn.Linear(3, 2, False)]), TrainingState([nn.Linear(3, 2)]), "parameter bias is only on this"),
        (TrainingState([nn.BatchNorm1d(2)]), TrainingState([nn.LayerNorm(2)]), "buffer running_mean is only on the"),
        (_with_extra_parameter(), _linear(3, 2), r"parameter optimizer0\.group1\.param0 is only on the rank that"),
        (_with_registered(), _linear(3, 2), "registered object average is only on the rank that"),
    ],
)
def test_what_two_ranks_built_differently_is_named(
    sender: TrainingState, receiver: TrainingState, message: str
) -> None:
    with pytest.raises(StateMismatch, match=f"^{message}"):
        receiver.targets(sender.capture().header)


def test_parameters_in_another_order_are_named() -> None:
    one = TrainingState([nn.ModuleDict({"a": nn.Linear(1, 1), "b": nn.Linear(1, 1)})])
    other = TrainingState([nn.ModuleDict([("b", nn.Linear(1, 1)), ("a", nn.Linear(1, 1))])])
    with pytest.raises(StateMismatch, match=r"parameter b\.weight has another place"):
        other.targets(one.capture().header)


def test_an_object_that_refuses_its_state_is_named() -> None:
    def with_average(size: int) -> TrainingState:
        state = TrainingState([nn.Linear(1, 1)])
        state.register("average", nn.Linear(size, 1))
        return state

    with pytest.raises(StateMismatch, match="(?s)average does not take the state of its like .*size mismatch"):
        _hand_over(with_average(2), with_average(3))


@pytest.mark.parametrize(
    ("name", "obj", "error", "message"),
    [
        ("x", object(), TypeError, "'x' .object. has no state_dict and no load_state_dict"),
        ("taken", nn.Linear(1, 1), ValueError, "'taken' is registered already"),
    ],
)
def test_what_cannot_be_registered(name: str, obj: Any, error: type[Exception], message: str) -> None:
    state = TrainingState()
    state.register("taken", nn.Linear(1, 1))
    with pytest.raises(error, match=message):
        state.register(name, obj)


def test_an_object_with_state_that_cannot_be_carried_is_refused_at_once() -> None:
    class Holder(nn.Module):
        def get_extra_state(self) -> Any:
            return {"handle": object()}

    with pytest.raises(TypeError, match=r"^mine\._extra_state\.handle: builtins\.object cannot be carried"):
        TrainingState().register("mine", Holder())


def test_registered_objects_may_change_while_their_state_is_on_its_way() -> None:
    training = trained("several", 1, 2)
    captured = training.state.capture()
    before = [t.clone() for t in captured.tensors]
    training.state.registered["own"].values["mean"].fill_(-1.0)
    training.state.models[0](torch.randn(8, 16))  # moves the buffers
    assert all(map(torch.equal, captured.tensors, before))


def test_large_tensors_of_the_script_may_change_while_they_are_on_their_way() -> None:
    """Such as a confusion matrix, into which the loop body counts before its `job.backward`."""
    state = TrainingState(user={"table": torch.zeros(300, 300)})
    own = Doubling()
    own.values["mean"] = torch.zeros(300, 300)
    state.register("own", own)
    captured = state.capture()
    own.values["mean"].fill_(1.0)
    state.user["table"].fill_(1.0)
    assert [float(t.sum()) for t in captured.tensors] == [0.0, 0.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.complex64, torch.float8_e4m3fn])
def test_checksums_see_one_bit_in_any_type(dtype: torch.dtype) -> None:
    model = nn.Module()
    model.first = nn.Parameter(torch.rand(7, 3).to(dtype), requires_grad=False)
    model.turned = nn.Parameter(torch.rand(4, 6).to(dtype).T, requires_grad=False)
    state = TrainingState([model])
    names, sums = state.checksums()
    again = TrainingState([copy.deepcopy(model)]).checksums()
    model.turned.data[2, 1].view(-1).view(torch.uint8)[0] ^= 1
    _, changed = state.checksums()
    assert names == ["first", "turned"]
    assert sums.dtype == torch.int64
    assert torch.equal(sums, again[1])
    assert (sums != changed).tolist() == [False, True]


KINDS_OF_NUMBERS = [torch.float64, torch.float32, torch.bfloat16, torch.complex64, torch.uint8, torch.bool]


@pytest.mark.parametrize("dtype", KINDS_OF_NUMBERS)
def test_a_digest_sees_one_element_and_its_place(dtype: torch.dtype) -> None:
    """Other than a sum: a one among zeros, at powers of two apart, in tensors of no even number of words."""
    places = [0, 1, 2, 3, 8, 64, 2**11, 2**12, 2**15, 2**17, 3 * 2**15, 2**18, 300_000]
    seen = {int(digest(torch.zeros(300_001, dtype=dtype)))}
    for place in places:
        tensor = torch.zeros(300_001, dtype=dtype)
        tensor[place] = 1
        seen.add(int(digest(tensor)))
    assert len(seen) == len(places) + 1


@pytest.mark.parametrize("dtype", KINDS_OF_NUMBERS)
def test_a_digest_is_of_values_and_not_of_memory(dtype: torch.dtype) -> None:
    tensor = (torch.arange(70_007) % 2).to(dtype).view(7, 73, 137)
    wide = torch.zeros(7, 73, 2 * 137 + 1, dtype=dtype)
    wide[:, :, 1::2] = tensor
    turned = tensor.permute(2, 0, 1).contiguous().permute(1, 2, 0)
    assert {int(digest(one)) for one in (wide[:, :, 1::2], turned)} == {int(digest(tensor))}
    assert int(digest(tensor.reshape(-1).flip(0))) != int(digest(tensor.reshape(-1).roll(1)))


def test_checksums_name_parameters_of_optimizers_and_take_booleans_and_expanded_ones() -> None:
    model = nn.Module()
    model.flags = nn.Parameter(torch.tensor([True, False, True]), requires_grad=False)
    model.expanded = nn.Parameter(torch.tensor([1], dtype=torch.uint8).expand(5), requires_grad=False)
    extra = nn.Parameter(torch.zeros(2))
    names, sums = TrainingState([model], [torch.optim.SGD([extra], lr=0.1)]).checksums()
    assert dict(zip(names, sums.tolist(), strict=True)) == {"flags": 2, "expanded": 5, "optimizer0.group0.param0": 0}


def test_nothing_to_capture_is_no_error() -> None:
    state = TrainingState()
    _hand_over(state, TrainingState())
    assert state.checksums()[1].tolist() == []


class Kept:
    """Something that the library keeps of a training."""

    def __init__(self, value: float) -> None:
        self.state: dict[str, Any] = {"value": value, "pair": [1, None]}

    def state_dict(self) -> dict[str, Any]:
        return self.state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state = state


@pytest.mark.parametrize("keep_own", [False, True], ids=["a joiner", "one that keeps its own objects"])
def test_the_gradient_noise_travels_to_whoever_takes_the_state(keep_own: bool) -> None:
    sender, receiver = TrainingState(noise=Kept(float("inf"))), TrainingState(noise=Kept(2.0))
    header = json.loads(json.dumps(sender.capture().header, allow_nan=False))
    receiver.finish(header, receiver.targets(header, keep_own), keep_own)
    assert receiver.noise is not None
    assert receiver.noise.state_dict() == {"value": float("inf"), "pair": [1, None]}


def test_a_state_without_gradient_noise_starts_it_anew_and_one_with_it_fits_where_it_is_not_measured() -> None:
    receiver = TrainingState(noise=Kept(2.0))
    _hand_over(TrainingState(), receiver)
    assert receiver.noise is not None and receiver.noise.state_dict() == {}
    other = TrainingState()
    _hand_over(receiver, other)
    assert other.noise is None


@pytest.mark.parametrize("held", [True, False])
def test_of_registered_objects_only_what_an_optimizer_holds_is_taken_over_while_the_script_goes_on(held: bool) -> None:
    """As in an optimizer in shape only, whose step has another one step: what came of that is in the state."""

    def build(value: int) -> TrainingState:
        optimizer = torch.optim.SGD([torch.zeros(2)], lr=0.1)
        foreign = Doubling()
        foreign.values["count"] = value
        if held:
            optimizer.foreign = foreign  # type: ignore[attr-defined]
        state = TrainingState(optimizers=[optimizer])
        state.register("foreign", foreign)
        return state

    sender, receiver = build(3), build(5)
    captured = sender.capture()
    receiver.finish(captured.header, captured.tensors, keep_own=True)
    assert receiver.registered["foreign"].values["count"] == (3 if held else 5)
