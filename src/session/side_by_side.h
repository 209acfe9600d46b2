// Several samples that continue one text, run side by side: one row of each in every pass.
// Thread-safety: as BatchRunner.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "kvasir/result.h"
#include "scheduler/batch_runner.h"

namespace kvasir {

// Runs `count` samples to their ends, each a copy of `first` with a seed of its own from `seed` on, on a fork of the
// text's sequence. A sample fails alone (GenerateResult::status). If memory cannot hold the next tokens of all, the
// newest samples end first (kKvMemory). `on_text` may be null; it returns false to end its sample. Figures of the
// prompt stay 0. Errors: those of forks and passes.
Result<std::vector<GenerateResult>> sample_side_by_side(
    BatchRunner& runner, const TextState& text, const Generation& first, std::uint64_t seed, int count,
    const std::function<bool(std::size_t sample, std::string_view text)>& on_text);

}  // namespace kvasir
