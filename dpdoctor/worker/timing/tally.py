"""How many samples a step trained on."""

from __future__ import annotations

import functools
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import accumulate
from typing import Any

import msgspec
import torch

from dpdoctor import units
from dpdoctor.worker.timing.ahead import Ahead
from dpdoctor.worker.timing.batches import MOST_AHEAD, Batch, Look, Pass, Pending, Rows, StorageReference, live_storages

UNCOUNTED = "samples are not counted, so throughput is unknown ({}): give --samples-per-step"
NOT_A_BATCH = (
    "no loader counts them, and the model is not called with a tensor but with a list, a tuple, text or another object"
)
UNSEEN = "no loader counts them, and steps run no forward pass of a model that is seen, as where each trains a new copy"
UNSURE = "several batches are fetched for one forward pass, and it cannot be told on which of them the script trains"
NOT_ALIKE = "no loader counts them, and the optimizers of one step train on different numbers of rows"
OTHER_MODELS = (
    "no loader counts them, and models are trained in one step on tensors of their own: the same samples or other "
    "ones, which cannot be told"
)
NOT_TOLD = (
    "no loader counts them, and nothing tells which dimension of the first tensor that the model is called with is the "
    "batch's"
)
SEVERAL_CALLS = (
    "no loader counts them, and the model is called several times before a backward pass: on other samples or the same "
    "ones, which cannot be told"
)
OF_INPUTS = (
    "no loader counts them, and some of the several backward passes of a step give gradients to what the model is "
    "called with, as adversarial training and gradient penalties do: whether on the same samples cannot be told"
)
SAME_AGAIN = (
    "no loader counts them, and several backward passes of a step are over one and the same tensor, as in every step: "
    "it is one batch, or stands in for several"
)
FEWER_ROWS = (
    "no loader counts them, and another model goes on with fewer rows than entered: whether several of them are one "
    "sample, as nodes of graphs are, or some were left out, cannot be told"
)
APART = (
    "no loader counts them, and the loss takes apart, along the batch, what the model returned, or holds its rows "
    "against each other: they may be several views of a sample, or pairs, or in part not trained on, which cannot be "
    "told"
)
TOLD = (
    "no loader counts samples: they are dim {} of the first tensor that the model is called with, up to {} per step, "
    "which its layers or its output take for the batch's; several views of a sample count as several"
)
ASSUMED = (
    "no loader counts samples: they are taken to be dim 0 of the first tensor that the model is called with, up to {} "
    "per step; where that is not the batch, as in (time, batch), or holds several views of each sample, give "
    "--samples-per-step"
)
IN_PASSES = (
    "; up to {} backward passes of a step are taken to be on samples of their own: where one is on those of another, "
    "with noise added, say, give --samples-per-step"
)
AS_VIEWS = (
    "{} rows enter the model with {} of a loader{}: they are taken for several rows of each, as several views "
    "of it are; where some are samples from elsewhere, as from a memory of earlier ones, give --samples-per-step"
)
REPEATED = "; each is there {} times, one like the other, and counts once"
# Before a framework has fetched ahead for the first time it may seem so.
LEAST_STEPS_TO_DOUBT = 8
# Loaders that are read side by side may be a batch or two apart.
ALIKE = 0.9
# Forwards without gradients, each alone between training forwards, are a part of what a step is where so many steps
# and so large a share of them have one: a model's own labels, or self-conditioning, which is left to chance.
LEAST_STEPS_ASIDE, LEAST_SHARE_ASIDE = 3, 0.1
# From so many distances of begins on the length of an epoch is taken to be known.
LEAST_EPOCHS, MOST_EPOCHS = 2, 50


class Counted(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What one step consumed; the fields are StepRecord's. 0 samples: not known."""

    samples_drawn: int
    samples_entered: int
    micro_batches: int
    epoch_edge: bool
    elements: int = 0
    samples_handed: int = 0
    reconciled: bool = True
    interrupted: bool = False


class Tally:
    """Counts a batch when a training forward follows its fetch, and a backward pass that forward.

    Batches that only an evaluation saw are not counted, nor those that the script passed over, nor is a batch twice
    when the model runs twice on it. Batches that the script holds, in a list or by itertools.cycle, count in each step
    that trains on them. Only one that was counted in the step before, and whose loader gives another afterwards, is of
    that step: two optimizers train on it in turn. Loaders are known by the number that the caller gives them. What
    entered the model counts where no loader does: within a step, two optimizers that train in turn on one batch must
    not count it twice.

    Attributes:
        was_short: whether the step that ended last was counted with fewer calls; only SteadyTally does.
        loaders_count: whether loaders have counted the samples of a step: models are not asked for them any more.
        item_per_row: loaders in whose batches each row is one item, by their shapes.
        trains_in_eval_mode: whether a backward pass came to forwards of models in eval mode alone.
    """

    def __init__(self) -> None:
        self._pending = Pending()
        self._ahead = Ahead()
        self._only_evaluated = False
        self._doubtful: tuple[int, int, tuple[int, ...], Callable[[], Look], Callable[[], Rows | None]] | None = None
        self._fresh = True
        self._has_taken = self._repeats = self._is_interrupted = False
        # Backward passes so far, and after how many the forwards began of which rows were counted in this step.
        self._num_backwards = 0
        self._counted_after: set[int] = set()
        # Batches of this step that an evaluation seemed to have fetched.
        self._dropped: list[Batch] = []
        self._passes: list[Pass] = []
        self._all_rows = 0
        self._settled: list[Pass] = []
        self._is_news = False
        # Loaders that gave batches in this step.
        self._gave: set[int] = set()
        # Steps in which a loader gave batches that had not fed training by then.
        self._gave_unfed: Counter[int] = Counter()
        self._handed: Counter[int] = Counter()
        self._rows: list[int] = []
        # Since an optimizer stepped, the models that backward passes came to, each with the number of the pass; and how
        # many came to the same model, in this step at least.
        self._came_to: set[tuple[int | None, int]] = set()
        self._least_passes: int | None = None
        self._drawn = self._entered = self._elements = self._fed_backwards = self._backwards = 0
        self._edge = False
        # Forwards without gradients: whether the last forward was one, whether this step has any, how many steps had.
        self._follows_evaluated = self._has_aside = self.trains_in_eval_mode = False
        self._steps_aside = 0
        self._turns: list[int] = []
        self._most_entered = 0
        self.loaders_count = self.was_short = False
        # Steps in a row for which no loader counted, and in which nothing entered a model.
        self._undrawn = self._unentered = 0
        self._uncounted: str | None = None
        self._told: Rows | None = None
        # Forwards whose rows were counted since an optimizer stepped, the last call before that, and the most of them.
        self._turn: list[Pass] = []
        self._call_before: tuple[int, object] | None = None
        self._most_passes = 0
        self._steps = self._laps = 0
        # Batches per loader, those that were passed over with them: in this step, and in all after the first that it
        # fed. That first one is left out, because it also took what the script had fetched before it began to train.
        self._fed: Counter[int] = Counter()
        self._fed_since: Counter[int] = Counter()
        self._samples_of: Counter[int] = Counter()
        # Loaders of which a batch of several entered in as many rows as were drawn for it, and in more; and two
        # numbers of rows in which batches of each entered, with how many were drawn for them.
        self._in_as_many: set[int] = set()
        self._in_more: set[int] = set()
        self._in_rows: defaultdict[int, dict[int, int]] = defaultdict(dict)
        self.item_per_row: Collection[int] = ()
        # Rows that entered, the samples of the batches that they are taken for several views of, and in how many steps.
        self._as_views = 0, 0
        self._steps_as_views = 0
        self._first_fed: dict[int, int] = {}
        self._last_fed: dict[int, int] = {}
        self._most_silent: Counter[int] = Counter()
        # Per loader, the steps that had ended when it began last, and those between its latest begins.
        self._began: dict[int, int] = {}
        self._between: defaultdict[int, deque[int]] = defaultdict(lambda: deque(maxlen=MOST_EPOCHS))

    def fetched(
        self,
        loader: int,
        num_samples: int,
        *,
        ahead: bool = False,
        storages: Iterable[int] = (),
        references: dict[int, StorageReference] | None = None,
        for_training: bool = True,
    ) -> None:
        """A batch of `num_samples` drawn indices was handed to the script; 0: the loader does not know.

        `ahead`: a thread of the script's fetched it, for some later forward: that may be the one which is called with
        its tensors. Where none is, it is counted at once: step by step that is early, over a window it is exact but for
        a queue's length. `storages`, `references` and `for_training` are Batch's.
        """
        if self._only_evaluated and for_training:
            self._edge |= self._doubtful is not None
            self._dropped += self._pending.clear()
            self._only_evaluated, self._doubtful = False, None
        self._edge |= not for_training
        batch = Batch(
            loader=loader,
            size=num_samples,
            storages=set(references or storages),
            for_training=for_training,
            references=references or {},
        )
        if for_training:
            self._handed[loader] += num_samples
            self._gave.add(loader)
            self._is_news = True
        if ahead and for_training:
            self._ahead.add(batch)
            if not self._ahead.is_followed:
                self._count(batch)
        else:
            self._pending.add(batch)

    def handed(self, loader: int, num_samples: int, batch: Any, *, ahead: bool, for_training: bool) -> None:
        """A batch was handed to the script, as `fetched` has it, which is told where its tensors lie."""
        references = live_storages(batch)
        self.fetched(loader, num_samples, ahead=ahead, references=references, for_training=for_training)

    def copied(self, source: Iterable[int], target: Mapping[int, StorageReference]) -> None:
        """The script copied a tensor to a device; both are where its data lies."""
        source = set(source)
        self._pending.copied(source, target)
        self._ahead.copied(source, target)

    def epoch_began(self, loader: int) -> None:
        """A loader was iterated anew; what it gave before and nobody trained on is not trained on any more."""
        self._edge = True
        self._pending.drop(loader)
        before, self._began[loader] = self._began.get(loader), self._steps
        if before is not None and self._steps > before:
            self._between[loader].append(self._steps - before)

    def interrupted(self) -> None:
        """What the script did in this step is not what a step does: other optimizers took many."""
        self._edge = self._is_interrupted = True

    def sees_another_model(self) -> None:
        """From now on a model is seen of which only parts were: what they could not tell, it may."""
        self._uncounted = None

    def trained(
        self,
        num_entered: int,
        *,
        elements: int = 0,
        in_eval_mode: bool = False,
        storages: Iterable[int] = (),
        look: Callable[[], Look] = Look,
        samples: Callable[[], Rows | None] | None = None,
        call: tuple[int, object] | None = None,
        goes_on: bool = False,
        changes_input: bool = False,
    ) -> Pass | None:
        """A forward with gradients began on `num_entered` samples, a tensor of `elements`; 0: nobody can tell.

        Return what is to be told when a backward pass comes to it; None: it is not known yet whether it trains.
        `in_eval_mode`: of a module that says it does not train. A script that forgot `no_grad` evaluates like that, one
        that fine-tunes a frozen model trains like that: the latter calls backward before it fetches the next batch.
        `storages`: where the data of the tensors lies that it is called with. `look`: looks at them more closely.
        `samples`, asked after the forward (None: what entered are samples), `call`, `goes_on` and `changes_input` are
        Pass's; once `loaders_count` they are of no use.
        """
        samples = samples or functools.partial(Rows, num_entered)
        if in_eval_mode:
            self._only_evaluated = True
            if self._doubtful is None:
                looked = look()  # now: it must not keep the tensors
                self._doubtful = (num_entered, elements, tuple(storages), lambda: looked, samples)
            return None
        training = self._consume(num_entered, elements, storages, look, samples)
        training.call, training.goes_on, training.changes_input = call, goes_on, changes_input
        return training

    def repeats(self, module: int, first: torch.Tensor) -> bool:  # noqa: ARG002 - SteadyTally's
        """Return whether a forward of a model on this first tensor need not be looked at, though no loader counts.

        It has the samples of those in the steps before.
        """
        return False

    def trained_as_before(
        self,
        first: torch.Tensor,  # noqa: ARG002
        call: tuple[int, object],  # noqa: ARG002
        *,
        alone: bool,  # noqa: ARG002
    ) -> bool:
        """Return whether a forward on this first tensor trains as those before did; then it is counted by that.

        `alone`: it is called with nothing else.
        """
        return False

    def _consume(
        self,
        rows: int,
        elements: int,
        storages: Iterable[int],
        look: Callable[[], Look],
        samples: Callable[[], Rows | None],
    ) -> Pass:
        num_known, num_unsure = self._pending.num_known, self._pending.num_unsure
        storages = set(storages)
        by_threads = self._ahead.take(storages)
        uncounted = [batch for batch in by_threads if batch.counted_in is None]
        for batch in uncounted:
            self._pending.gone_by(batch)
        batches = self._taken_wrongly(storages) + uncounted
        is_known = bool(batches or by_threads)
        if not is_known:
            batches = self._pending.take(rows, storages, is_first=self._fresh or self._is_news)
            is_known = self._pending.num_known > num_known
        self._is_news = False
        again = [] if batches else self._pending.gone(storages)
        is_known |= bool(again)
        size = sum(batch.size for batch in batches or again)
        if batches and not is_known and self._dropped and rows == size + sum(batch.size for batch in self._dropped):
            # Labelled by the model that trains on it next, with another loader's batch.
            batches, self._dropped, size = [*batches, *self._dropped], [], rows
        fits, is_part, is_of_views, looked = True, False, False, Look()
        if size not in {0, rows}:
            looked = look()
            is_part = looked.is_part and is_known and 0 < rows < size
            is_of_time = is_part and size in looked.across
            # Nor is it told where as many rows as samples lie there: of whichever dimension it is a part.
            is_told = not is_of_time or size not in looked.wholes
            is_part = is_part and not is_of_time
            # More rows are several of each sample, as in views of an image; fewer may be samples that were left out.
            is_whole = rows > size and rows % size == 0
            is_sure = self._pending.num_unsure == num_unsure
            fits = is_told and ((is_whole and is_sure) or size in looked.sizes or (is_known and not is_part))
            is_of_views = fits and is_whole and not is_known and size not in looked.sizes
        if is_known and not is_part and len(batches) == 1 and size not in looked.sizes:
            fits &= self._compare(batches[0], rows)
        training = Pass(
            rows=rows,
            samples=samples,
            elements=elements,
            batches=batches,
            again=again,
            gave=frozenset(self._gave),
            is_repeat=self._repeats,
            fits=fits,
            is_part=is_part,
            is_known=is_known,
            is_of_views=is_of_views,
            number=self._num_backwards,
        )
        self._passes.append(training)
        self._follows_evaluated = False
        self._only_evaluated, self._doubtful, self._fresh = False, None, False
        return training

    def _compare(self, batch: Batch, rows: int) -> bool:
        """Learn whether rows are a loader's samples; where they are, fewer are what the script left of those drawn.

        They are where their shapes tell that each row is one item. Several samples in each row, as in packed sequences,
        are as many rows by chance alone, as one sample in one row is; of those packed into the same number of rows each
        time no sample is left out. Return whether it is told: where shapes say nothing, nobody leaves out most samples.
        """
        if not (batch.size and rows):
            return True
        in_rows = self._in_rows[batch.loader]
        if len(in_rows) < 2:
            in_rows[rows] = batch.size
        if rows > batch.size:
            self._in_more.add(batch.loader)
        elif rows == batch.size > 1:
            self._in_as_many.add(batch.loader)
        elif len(in_rows) > 1 and batch.loader not in self._in_more:
            (a, drawn_for_a), (b, drawn_for_b) = in_rows.items()
            # Always the same share of them are pairs, say, or views of the others.
            is_known = batch.loader in self.item_per_row and a * drawn_for_b != b * drawn_for_a
            if not is_known and batch.loader in self._in_as_many and 2 * rows < batch.size:
                return False
            if is_known or batch.loader in self._in_as_many:
                batch.size = rows
        return True

    def _taken_wrongly(self, storages: set[int]) -> list[Batch]:
        """Return the batches whose tensors these are and that an open forward took by their numbers; it loses them.

        A generator that is called on noise before the discriminator is called on the batch does so.
        """
        found: list[Batch] = []
        for training in self._passes:
            own = [batch for batch in training.batches if any(batch.lies_at(storage) for storage in storages)]
            if own and not training.is_known:
                found += own
                training.batches = [batch for batch in training.batches if batch not in own]
                training.fits, training.is_of_views = True, False
        return found

    def _settle(self, *, after_backward: bool = False) -> None:
        """Count the forwards that a backward pass came to, and those of which nobody can tell.

        After a backward pass that came to none of them it was one of a loss that the module kept, and all count.
        """
        if not self._passes:
            return
        found = [training for training in self._passes if training.reached is not False]
        if after_backward and not found:
            found = self._passes
        self._passes = [training for training in self._passes if training not in found]
        for training in found:
            self._has_taken |= bool(training.batches)
            self._settled.append(training)
            self._all_rows += training.rows
            is_again = self._is_again(training)
            if not is_again:
                self._came_to.add((training.call[0] if training.call else None, training.number))
            for batch in training.batches:
                self._count(batch)
            if training.number not in self._counted_after and not training.is_repeat:
                self._counted_after.add(training.number)
                if not is_again:
                    self._count_rows(training)
            elif not (self._has_taken or self._is_counted(training)):
                if self._is_on_others(training):
                    self._uncounted = SEVERAL_CALLS
                elif training.goes_on:
                    self._note_pooled(training)

    def _count_rows(self, training: Pass) -> None:
        """Count what entered with the first forward of a backward pass; another model's on the same tensor is no more.

        So a policy's loss and a value's on the same states are of one batch.
        """
        last, call = self._turn[-1].call if self._turn else None, training.call
        if last is not None and call is not None and last[0] != call[0] and not self._is_counted(training):
            if last[1] != call[1] and not training.goes_on:
                self._uncounted = OTHER_MODELS
            return
        self._turn.append(training)
        self._entered += self._samples_in(training)
        if len(self._turn) > 1 and any(each.changes_input for each in self._turn) and not self._is_counted(training):
            self._uncounted = OF_INPUTS
        self._rows.append(training.rows)
        self._elements += training.elements

    def _note_pooled(self, training: Pass) -> None:
        """Give up where another model goes on with fewer rows than there were samples: several of them may be one."""
        last, call = self._turn[-1].call if self._turn else None, training.call
        if last is None or call is None or last[0] == call[0]:
            return
        rows = training.samples()
        if rows is not None and self._told is not None and 0 < rows.number < self._told.number:
            self._uncounted = FEWER_ROWS

    def _is_again(self, training: Pass) -> bool:
        """Return whether a later backward pass comes to a model that was called with the same tensor, as SAM's does.

        Of a closure that runs again it is known that it does.
        """
        if training.is_repeat or training.call is None or training.call[1] is None or self._is_counted(training):
            return False
        before = [each for each in self._turn if each.call == training.call and each.number != training.number]
        if before and self._call_before == training.call:
            self._uncounted = SAME_AGAIN
        return bool(before)

    def _is_on_others(self, training: Pass) -> bool:
        """Return whether the model that was called before is called once more, on another tensor."""
        last = self._turn[-1].call if self._turn else None
        if training.is_repeat or training.goes_on or training.call is None or last is None:
            return False
        return training.call[0] == last[0] and training.call[1] != last[1]

    def _is_counted(self, training: Pass) -> bool:
        """Return whether loaders count the samples of a forward, or those of others beside it."""
        by_loaders = any(batch.size for batch in (*training.batches, *training.again))
        return self.loaders_count or self._drawn > 0 or by_loaders

    def _samples_in(self, training: Pass) -> int:
        """Return the samples that entered with a forward: its rows; where no loader counts them, the model's word."""
        if not training.rows:
            self._uncounted = NOT_A_BATCH
        if not training.rows or self._is_counted(training):
            return training.rows
        self._told = training.samples()
        if self._told is None or not self._told.number:
            self._uncounted = NOT_TOLD if self._told is None else self._told.unknown
        return self._told.number if self._told else 0

    def _let_go(self) -> None:
        """Forget forwards that no backward pass came to for a whole step: what they were called with was looked at."""
        for training in self._passes:
            training.laps += 1
        if self._passes:
            self._passes = [training for training in self._passes if training.laps <= 1]

    def _count_again(self) -> list[Pass]:
        """Count the batches that the script holds and trained on again; return the forwards that tell of this step."""
        taken = {batch for training in self._settled for batch in training.batches}
        passes = [training for training in self._settled if not self._is_of_the_step_before(training)]
        for batch in dict.fromkeys(batch for training in passes for batch in training.again):
            if batch not in taken:
                self._count(batch)
        return passes

    def _is_a_loader_silent(self) -> bool:
        """Return whether a loader feeds training no more: what entered may be made of its batches, which are held."""
        return any(
            self._steps - fed >= max(MOST_AHEAD, self._most_silent[loader]) for loader, fed in self._last_fed.items()
        )

    def _is_of_the_step_before(self, training: Pass) -> bool:
        found = (batch for batch in training.again if batch.counted_in == self._laps - 1)
        return any(batch.loader in self._gave and batch.loader not in training.gave for batch in found)

    def _count(self, batch: Batch) -> None:
        self._drawn += batch.size
        # One that several steps train on, in a row, is still one that the loader gave.
        self._fed[batch.loader] += batch.counted_in != self._laps - 1
        batch.counted_in = self._laps
        self._samples_of[batch.loader] += batch.size
        if not batch.for_training:
            self._handed[batch.loader] += batch.size

    def taken_apart(self, lengths: Collection[int]) -> None:
        """A backward pass begins, from losses that take rows of so many apart, or hold them against each other."""
        for training in self._passes:
            if training.rows in lengths and not self._is_counted(training):
                rows = training.samples()
                if rows is not None and rows.number and rows.dim == 0:
                    self._uncounted = APART

    def evaluated(self) -> None:
        """A forward without gradients ran: what was fetched is an evaluation's, unless the script trains on it next."""
        self._only_evaluated = True
        self._edge |= self._follows_evaluated
        self._follows_evaluated = self._has_aside = True

    def backward(self, *, in_step: bool = False) -> None:
        """A backward pass ended; `in_step`: one of an optimizer's closure, which runs on the same samples again."""
        if self._doubtful is not None:
            self.trains_in_eval_mode |= self._fresh
            self._consume(*self._doubtful)
        if not self._fresh:
            self._settle(after_backward=True)
            counts = not in_step or not self._backwards
            self._backwards += counts
            self._fed_backwards += counts and self._has_taken
            self._num_backwards += 1
            self._begin_pass(repeats=in_step)

    def _begin_pass(self, *, repeats: bool = False) -> None:
        self._fresh, self._repeats = not repeats, repeats
        self._has_taken = False

    def optimizer_stepped(self) -> None:
        """An optimizer took its step on what entered since the step before, of whichever optimizer."""
        self._settle()
        if self._turn:
            self._most_passes = max(self._most_passes, len(self._turn))
            self._call_before = self._turn[-1].call
            self._turn.clear()
        if self._came_to:
            passes = max(Counter(model for model, _ in self._came_to).values())
            self._least_passes = min(passes, self._least_passes or passes)
            self._came_to.clear()
        if self._entered:
            self._turns.append(self._entered)
            self._entered = 0

    def _entered_once(self) -> int:
        """Return the samples that entered in a step, those that several optimizers trained on once; 0: not known."""
        self.optimizer_stepped()
        turns, self._turns = set(self._turns), []
        if len(turns) > 1:
            self._uncounted = NOT_ALIKE
        return 0 if self._uncounted else next(iter(turns), 0)

    def _micro_batches(self) -> int:
        """Return the backward passes on other samples each; a second one on the same, or on noise, is none.

        Nor is one after which an optimizer stepped, as where a critic and an actor train in turn, or one over another
        model: nothing adds to its gradients.
        """
        if self._backwards <= 1:
            return self._backwards
        rows = accumulate(self._rows)
        in_parts = sum(entered <= self._drawn for entered in rows) if self._drawn else 0
        found = max(self._fed_backwards, min(in_parts, self._backwards)) or self._backwards
        return min(found, self._least_passes or found)

    def _loaders_tell(self) -> bool:
        return self.loaders_count and self._undrawn < LEAST_STEPS_TO_DOUBT and self._uncounted != UNSURE

    def uncounted(self) -> str:
        """Return why samples are not counted; empty: they are, or it is not known yet."""
        if self._loaders_tell():
            return ""
        return self._uncounted or (UNSEEN if self._unentered >= LEAST_STEPS_TO_DOUBT else "")

    def remarks(self) -> tuple[str, ...]:
        """Return what the reader must know of how samples were counted."""
        if self._loaders_tell():
            return self._remarks_on_views()
        if why := self.uncounted():
            return (UNCOUNTED.format(why),)
        if not self._most_entered:
            return ()
        more = IN_PASSES.format(self._most_passes) if self._most_passes > 1 else ""
        if self._told is not None and self._told.times > 1:
            more += REPEATED.format(self._told.times)
        if self._told is not None and self._told.is_told:
            return (TOLD.format(self._told.dim, self._most_entered) + more,)
        return (ASSUMED.format(self._most_entered) + more,)

    def _remarks_on_views(self) -> tuple[str, ...]:
        """Return that rows are taken for views, and in how many steps, if not in most; of odd steps nothing."""
        steps, is_usual = self._steps_as_views, self._steps_as_views > self._laps / 2
        if not is_usual and steps <= LEAST_STEPS_TO_DOUBT:
            return ()
        where = "" if is_usual else f" in {units.whole(steps)} of {units.count(self._laps, 'step')}"
        rows, samples = self._as_views
        return (AS_VIEWS.format(rows, units.count(samples, "sample"), where),)

    def lap(self) -> Counted:
        """End a step: return what it consumed and begin the next."""
        entered = self._entered_once()
        passes = self._count_again()
        for batch in self._ahead.step_ended(is_of_nothing=any(each.is_of_nothing for each in passes)):
            self._count(batch)
        if 2 * self._pending.num_unsure > max(self._steps, LEAST_STEPS_TO_DOUBT):
            self._uncounted, self._drawn = UNSURE, 0
        if self._all_rows < self._drawn and any(training.is_part for training in passes):
            self._drawn = self._all_rows  # the rest of the batch trains nothing, or later steps
        reconciled = all(training.fits for training in passes) or self._drawn in {sum(self._rows), self._all_rows}
        self.loaders_count |= self._drawn > 0
        self._undrawn = 0 if self._drawn else self._undrawn + 1
        reconciled &= self._drawn > 0 or not (self.loaders_count and self._all_rows)
        reconciled &= not (self._is_a_loader_silent() and any(training.is_of_nothing for training in passes))
        self._most_entered = max(self._most_entered, entered)
        self._unentered = 0 if self._all_rows else self._unentered + 1
        self._note_views()
        self._note_aside()
        self._pending.step_ended()
        is_interrupted = self._is_interrupted
        self._note_feeding()
        counted = Counted(
            samples_drawn=self._drawn,
            samples_entered=entered,
            micro_batches=self._micro_batches(),
            epoch_edge=self._edge,
            elements=self._elements,
            samples_handed=sum(self._handed[loader] for loader in self._first_fed),
            reconciled=reconciled,
            interrupted=is_interrupted,
        )
        self._gave_unfed.update(self._gave - self._first_fed.keys())
        self._handed.clear()
        self._settled.clear()
        self._gave.clear()
        self._laps += 1
        self._all_rows = 0
        self._drawn = self._elements = self._fed_backwards = self._backwards = 0
        self._rows.clear()
        self._dropped.clear()
        self._counted_after.clear()
        self._edge = False
        self._least_passes = None
        self._begin_pass()
        self._let_go()
        return counted

    def _note_views(self) -> None:
        found = [training for training in self._settled if training.is_of_views]
        if found:
            self._as_views = found[-1].rows, sum(batch.size for batch in found[-1].batches)
            self._steps_as_views += 1

    def _note_aside(self) -> None:
        """Take a step with forwards without gradients for an edge, unless enough of those before had them, too."""
        if self._has_aside:
            self._edge |= self._steps_aside < max(LEAST_STEPS_ASIDE, LEAST_SHARE_ASIDE * self._laps)
            self._steps_aside += 1
        self._has_aside = False

    def _note_feeding(self) -> None:
        if not self._is_interrupted:
            self._steps += 1
            # A loader that trains nothing is none that feeds, whatever the script passes over of it.
            feeds = self._fed.keys() | self._first_fed.keys()
            for fed in (self._fed, self._pending.passed):
                for loader, batches in fed.items():
                    if loader not in feeds:
                        continue
                    if self._first_fed.setdefault(loader, self._steps) != self._steps:
                        self._fed_since[loader] += batches
                    silence = self._steps - self._last_fed.get(loader, self._steps)
                    self._most_silent[loader] = max(self._most_silent[loader], silence)
                    self._last_fed[loader] = self._steps
        self._fed.clear()
        self._pending.passed.clear()
        self._is_interrupted = False

    def loaders(self) -> frozenset[int]:
        """Return the loaders that have fed training."""
        return frozenset(self._first_fed)

    def feeding(self) -> frozenset[int]:
        """Return the loaders that have fed training again after the first step that they fed.

        One that gave all the data before the training, from which the script then makes its batches, seems to feed the
        first step.
        """
        return frozenset(self._fed_since)

    def unfed(self) -> list[int]:
        """Return the loaders that give batches in most steps, and of which none has fed training."""
        most = max(LEAST_STEPS_TO_DOUBT, self._laps // 2)
        return sorted(
            loader for loader, steps in self._gave_unfed.items() if steps >= most and loader not in self._first_fed
        )

    def main_loader(self) -> tuple[int, float] | None:
        """Return the loader that fed most batches, of those that fed about as many the one that fed most samples.

        With it its batches per step. None while none has fed two steps.
        """
        most = max(self._fed_since.values(), default=0)
        if not most:
            return None
        alike = {loader: batches for loader, batches in self._fed_since.items() if batches >= ALIKE * most}
        loader, batches = max(alike.items(), key=lambda fed: (self._samples_of[fed[0]], fed[1]))
        return loader, batches / (self._steps - self._first_fed[loader])

    def steps_between_begins(self, loader: int) -> int | None:
        """Return the most steps between two begins of a loader; None where fewer than three were seen.

        The most, as batches that an ablation throws away make it fewer.
        """
        found = self._between[loader]
        return max(found) if len(found) >= LEAST_EPOCHS else None
