// The file of a small model that drafts tokens for another: checked before its weights are loaded.
// Thread-safety: pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "kvasir/options.h"
#include "kvasir/status.h"
#include "model/config.h"
#include "model/family.h"
#include "text/vocabulary.h"

namespace kvasir {

struct DraftFile {
  ModelConfig config;
  std::uint64_t weight_bytes = 0;  // allocated by loading
};

// Reads the header of a draft model's file. Errors: those of the file; kInvalidArgument if its vocabulary is not
// `vocabulary`, that of the model it drafts for, naming the first token that differs; kUnsupported if its layers hold
// states. All are about "draft_model".
Result<DraftFile> read_draft_file(const std::string& path, const Vocabulary& vocabulary,
                                  std::span<const Family* const> known = families());

// Returns the options that a draft model is loaded with; `options`: of the model it drafts for.
EngineOptions draft_engine_options(const EngineOptions& options);

}  // namespace kvasir
