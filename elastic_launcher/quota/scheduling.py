"""Says which machines pods can be on: by node selectors, required node affinity, taints and tolerations.

Source of the rules: Kubernetes' documentation, "Assigning Pods to Nodes" and "Taints and Tolerations".

Invariant: what can't be understood excludes no machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, ValidationError, convert, field

KEEPS_AWAY = ("NoSchedule", "NoExecute")
"""Effects of taints that keep pods away; the scheduler only avoids machines with the others."""
NAME_FIELD = "metadata.name"
"""The one field of a machine that node affinity can be about."""
_SHOWN = 3  # labels of a node selector in a reason


@dataclass(frozen=True, slots=True)
class Taint:
    """A taint of a machine."""

    key: str
    value: str = ""
    effect: str = "NoSchedule"


@dataclass(frozen=True, slots=True)
class Toleration:
    """A toleration of a pod.

    Attributes:
        key: Of the taints that it is about; "" for all.
        exists: Whether it tolerates any value; else the taint's value must be its own.
        value: That value.
        effect: Of the taints that it is about; "" for all.
    """

    key: str = ""
    exists: bool = False
    value: str = ""
    effect: str = ""

    def tolerates(self, taint: Taint) -> bool:
        """Returns whether a pod with it may be on a machine in spite of a taint."""
        if self.effect not in ("", taint.effect) or self.key not in ("", taint.key):
            return False
        return self.exists or (self.key != "" and self.value == taint.value)


@dataclass(frozen=True, slots=True)
class Requirement:
    """One requirement of node affinity on a label, or on the name.

    Attributes:
        key: The label's.
        operator: As the API names it.
        values: What it compares with.
        of_name: Whether it is about the machine's name instead.
    """

    key: str
    operator: str
    values: tuple[str, ...] = ()
    of_name: bool = False

    def fits(self, name: str, labels: Mapping[str, str]) -> bool:
        """Returns whether a machine meets it; a label that is not there is not in any values."""
        found = name if self.of_name else labels.get(self.key)
        match self.operator:
            case "In":
                return found in self.values
            case "NotIn":
                return found not in self.values
            case "Exists":
                return found is not None
            case "DoesNotExist":
                return found is None
        numbers = _whole(found), _whole(self.values[0])
        if numbers[0] is None or numbers[1] is None:
            return False
        return numbers[0] > numbers[1] if self.operator == "Gt" else numbers[0] < numbers[1]


@dataclass(frozen=True, slots=True)
class Scheduling:
    """What says which machines a pod can be on; without any of it, each machine whose taints don't keep it away.

    Attributes:
        selector: Labels that a machine must have, by key.
        affinity: Terms of required node affinity: a machine must meet all of at least one. None if there is none.
        tolerations: Taints that are put up with.
        unclear: What of it can't be understood, and excludes no machine; "" if nothing.
    """

    selector: tuple[tuple[str, str], ...] = ()
    affinity: tuple[tuple[Requirement, ...], ...] | None = None
    tolerations: tuple[Toleration, ...] = ()
    unclear: str = ""

    def admits(self, name: str, labels: Mapping[str, str], taints: Iterable[Taint]) -> bool:
        """Returns whether its pods can be on a machine."""
        if any(labels.get(key) != value for key, value in self.selector):
            return False
        if any(not any(one.tolerates(taint) for one in self.tolerations) for taint in taints):
            return False
        if self.affinity is None:
            return True
        return any(all(one.fits(name, labels) for one in term) for term in self.affinity)

    @property
    def words(self) -> str:
        """What machines must match, as reasons name it."""
        labels = [f"{key}={value}" for key, value in self.selector]
        shown = ", ".join([*labels[:_SHOWN], *(["…"] if len(labels) > _SHOWN else [])])
        found = [f"node selector ({shown})"] if labels else []
        found += [] if self.affinity is None else ["node affinity"]
        return " and ".join(found or ["tolerations"])


ANYWHERE = Scheduling(tolerations=(Toleration(exists=True),))
"""What excludes no machine, as for pods of which nothing is known."""


@dataclass(frozen=True, slots=True)
class Flavor:
    """What a queue adds to pods that it admits to some machines.

    Attributes:
        name: Its name.
        adds: The labels that the machines must have, and the tolerations that the pods get.
        taints: Of the machines; pods that tolerate these alone are admitted, with the tolerations that they get.
    """

    name: str
    adds: Scheduling = Scheduling()
    taints: tuple[Taint, ...] = ()

    def added_to(self, asked: Scheduling) -> Scheduling | None:
        """Returns what pods ask for in the end that ask for something themselves; None if they are not admitted."""
        tolerations = (*asked.tolerations, *self.adds.tolerations)
        if any(not any(one.tolerates(taint) for one in tolerations) for taint in self.taints):
            return None
        return replace(asked, selector=(*asked.selector, *self.adds.selector), tolerations=tolerations)


class _Toleration(Struct):
    key: str | None = None
    operator: Literal["Equal", "Exists"] | None = None
    value: str | None = None
    effect: str | None = None

    def read(self) -> Toleration:
        return Toleration(self.key or "", self.operator == "Exists", self.value or "", self.effect or "")


class _Requirement(Struct):
    key: str
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]
    values: list[str] | None = None

    def __post_init__(self) -> None:
        if not self.values and self.operator not in ("Exists", "DoesNotExist"):
            raise ValueError(f"{self.operator} has no values")

    def read(self, *, of_name: bool) -> Requirement:
        return Requirement(self.key, self.operator, tuple(self.values or ()), of_name)


class _OfName(_Requirement):
    def __post_init__(self) -> None:
        super().__post_init__()
        if self.key != NAME_FIELD:
            raise ValueError(f"{NAME_FIELD} is the only field")


class _Term(Struct):
    expressions: list[_Requirement] | None = field(default=None, name="matchExpressions")
    fields: list[_OfName] | None = field(default=None, name="matchFields")

    def read(self) -> tuple[Requirement, ...]:
        of_labels = [one.read(of_name=False) for one in self.expressions or ()]
        return (*of_labels, *(one.read(of_name=True) for one in self.fields or ()))


class _NodeSelector(Struct):
    terms: Annotated[list[_Term], Meta(min_length=1)] = field(name="nodeSelectorTerms")


class _NodeAffinity(Struct):
    required: _NodeSelector | None = field(default=None, name="requiredDuringSchedulingIgnoredDuringExecution")


class _Affinity(Struct):
    of_nodes: _NodeAffinity | None = field(default=None, name="nodeAffinity")

    def terms(self) -> tuple[tuple[Requirement, ...], ...] | None:
        """Returns the terms of what is required; one without any requirement fits no machine."""
        if self.of_nodes is None or self.of_nodes.required is None:
            return None
        return tuple(filter(None, (term.read() for term in self.of_nodes.required.terms)))


def scheduling_of(spec: Any) -> Scheduling:
    """Returns what a pod's spec says of machines, or an object with these members of it.

    A member that can't be understood excludes no machine; the others count.
    """
    if not isinstance(spec, Mapping):
        return Scheduling(unclear="it is no object")
    selector, odd_selector = _read(spec, "nodeSelector", dict[str, str] | None)
    tolerations, odd_tolerations = _read(spec, "tolerations", list[_Toleration] | None)
    affinity, odd_affinity = _read(spec, "affinity", _Affinity | None)
    return Scheduling(
        tuple(sorted((selector or {}).items())),
        None if affinity is None else affinity.terms(),
        (Toleration(exists=True),) if odd_tolerations else tuple(one.read() for one in tolerations or ()),
        "; ".join(filter(None, (odd_selector, odd_tolerations, odd_affinity))),
    )


def _read(spec: Mapping[str, Any], member: str, kind: Any) -> tuple[Any, str]:
    """Returns a member of a spec, and why it can't be understood; None and "" if it is not there."""
    try:
        return convert(spec.get(member), kind), ""
    except ValidationError as error:
        return None, f"{error}".replace("`$", f"`{member}") if "`$" in f"{error}" else f"{error} - at `{member}`"


def _whole(text: str | None) -> int | None:
    """Returns a label's value as a number; None if it is none."""
    digits = (text or "").removeprefix("-")
    return int(text or "") if digits.isascii() and digits.isdecimal() and len(digits) < 20 else None
