#include "retention/registry.h"

namespace kvasir {
namespace {

constexpr PolicyOption kRecomputeOptions[] = {
    {"size", "1024", "1 to 2^24", "tokens the model is run afresh on, for every token (C)"},
    {"stride", "1", "1 to 2^24", "only every stride-th token is computed and scored; the others are skipped"},
};

}  // namespace

const PolicyInfo kRecomputePolicy{
    .name = "recompute",
    .summary = "no cache: the model afresh on the last tokens for every token; what streaming is measured against",
    .formula = "the logits of token t are those of tokens t-size+1 ... t at positions 0 ... size-1",
    .reference = "sliding window with re-computation, arXiv 2309.17453, figure 1(c); the baseline of Lazy Pruning, Lin",
    .options = kRecomputeOptions,
    .acts = "never: it keeps nothing",
    .evaluation_only = true,
    .make = nullptr,
};

}  // namespace kvasir
