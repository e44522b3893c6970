"""The ordered phases and the rules in each. Level 0 runs none; higher levels add rules.

==========  =====  ==================================================================
phase       level  what it is for
==========  =====  ==================================================================
integers    2      contractions of dequantised tensors become products of integers
declutter   1      constants folded, no-ops and duplicates removed, affine into weights
recognise   2      what an exporter took apart becomes the operator that it means
precision   1      values stored in 16 bits, where that was asked for (at any level then)
fuse        2      elementwise operators computed on the results of contractions and windows
join        2      other connected operators in one loop nest
==========  =====  ==================================================================
"""

from __future__ import annotations

from dataclasses import dataclass

from accord.passes.rule import Rule
from accord.passes.rules.affine import BatchNormToAffine, FoldAffineIntoContraction, FoldBatchNorm
from accord.passes.rules.block_sparse import BlockSparse
from accord.passes.rules.branches import SelectBranch
from accord.passes.rules.compose import ComposeOperators
from accord.passes.rules.fold import CommonSubexpressions, FoldConstants, ShareConstants
from accord.passes.rules.fuse import FuseEpilogue
from accord.passes.rules.fuse_loops import FuseLoops
from accord.passes.rules.fuse_weights import FuseWeights
from accord.passes.rules.loop_state import CaptureUnchangedState, CollectAppendedState
from accord.passes.rules.pads import FoldPadIntoConvolution
from accord.passes.rules.precision import StoreHalf
from accord.passes.rules.recognise.activations import RecogniseActivation
from accord.passes.rules.recognise.affine_chain import MergeAffine
from accord.passes.rules.recognise.attention import RecogniseAttention
from accord.passes.rules.recognise.cache import RecogniseCache
from accord.passes.rules.recognise.casts import CastLikeToCast
from accord.passes.rules.recognise.causal import RecogniseCausalMask
from accord.passes.rules.recognise.cells import RecogniseGRUCell, RecogniseLSTMCell
from accord.passes.rules.recognise.group_norm import RecogniseGroupNorm
from accord.passes.rules.recognise.heads import PackAttentionHeads, PackRotaryHeads
from accord.passes.rules.recognise.integers import RecogniseIntegerProduct
from accord.passes.rules.recognise.movement import RecogniseDepthSpace, RemoveSplitConcat
from accord.passes.rules.recognise.norm_affine import AbsorbNormAffine
from accord.passes.rules.recognise.normalisation import RecogniseNormalisation
from accord.passes.rules.recognise.prelu import RecognisePRelu
from accord.passes.rules.recognise.projections import MergeProjections
from accord.passes.rules.recognise.reduction import RecogniseMean
from accord.passes.rules.recognise.rotary import RecogniseRotary
from accord.passes.rules.recognise.shorten import ShortenViews
from accord.passes.rules.recognise.softmax import RecogniseSoftmax
from accord.passes.rules.rows import ProductBeforeTranspose, UnflattenGemm, ViewBeforeProduct
from accord.passes.rules.simplify import (
    CollapseReshapes,
    FoldReshapeTarget,
    GatherBeforeElementwise,
    GatherToSlice,
    MergeTransposes,
    RemoveIdentity,
    RemoveNeutralArithmetic,
    RemoveNoOpCast,
    RemoveNoOpMovement,
    TransposeToReshape,
)
from accord.passes.rules.sink import SinkTranspose
from accord.passes.rules.slices import GatherRowOfSlice
from accord.passes.rules.sum_convolutions import SumConvolutions

__all__ = ["Phase", "phases", "rule_names"]


@dataclass(frozen=True, slots=True)
class Phase:
    """A named group of rules that run together until none fires.

    Attributes:
        name: Its name.
        rules: In the order in which they are tried.
        native: A rule fires only if the device has kernels of its own for what it writes.
        asked: It does what was asked for, so it runs at any level.
    """

    name: str
    rules: tuple[Rule, ...]
    native: bool = False
    asked: bool = False


def phases() -> tuple[Phase, ...]:
    """All phases in order."""
    return (
        Phase("integers", (RecogniseIntegerProduct(),), native=True),
        Phase(
            "declutter",
            (
                ComposeOperators(),
                GatherBeforeElementwise(),
                GatherToSlice(),
                GatherRowOfSlice(),
                FoldConstants(),
                RemoveIdentity(),
                SelectBranch(),
                CaptureUnchangedState(),
                CollectAppendedState(),
                RemoveNoOpCast(),
                RemoveNoOpMovement(),
                MergeTransposes(),
                TransposeToReshape(),
                SinkTranspose(),
                FoldReshapeTarget(),
                CollapseReshapes(),
                UnflattenGemm(),
                ViewBeforeProduct(),
                RemoveNeutralArithmetic(),
                FoldPadIntoConvolution(),
                FoldBatchNorm(),
                FoldAffineIntoContraction(),
                SumConvolutions(),
                ShareConstants(),
                CommonSubexpressions(),
            ),
        ),
        Phase(
            "recognise",
            (
                CastLikeToCast(),
                RecogniseNormalisation(),
                AbsorbNormAffine(),
                RecogniseGroupNorm(),
                RecogniseSoftmax(),
                RecogniseMean(),
                RecogniseActivation(),
                RecognisePRelu(),
                RecogniseDepthSpace(),
                RemoveSplitConcat(),
                RecogniseRotary(),
                RecogniseAttention(),
                BlockSparse(),
                RecogniseLSTMCell(),
                RecogniseGRUCell(),
                MergeAffine(),
                FoldAffineIntoContraction(),
                RecogniseCache(),
                RecogniseCausalMask(),
                PackRotaryHeads(),
                PackAttentionHeads(),
                ProductBeforeTranspose(),
                ShortenViews(),
                FoldConstants(),
                MergeTransposes(),
                CollapseReshapes(),
                RemoveNoOpMovement(),
                ShareConstants(),
                CommonSubexpressions(),
            ),
            native=True,
        ),
        Phase("precision", (StoreHalf(), RemoveNoOpCast(), ShareConstants(), CommonSubexpressions()), asked=True),
        Phase("fuse", (MergeProjections(), BatchNormToAffine(), FuseWeights(), FuseEpilogue())),
        Phase("join", (FuseLoops(),)),
    )


def rule_names() -> list[str]:
    """Names of all rules, for messages and for switching off."""
    return list(dict.fromkeys(r.name for p in phases() for r in p.rules))
