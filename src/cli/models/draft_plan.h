// The memory that a draft model takes, planned from the header of its file.
// Thread-safety: pure functions.
#pragma once

#include <cstdint>
#include <string>

#include "gguf/reader.h"
#include "kvasir/status.h"
#include "planning/memory_plan.h"

namespace kvasir::cli {

struct DraftPlan {
  std::uint64_t weights = 0;
  KvMemory kv;                  // at most
  std::uint64_t workspace = 0;  // of its passes, with what describes their page tables
};

struct DraftPlanRequest {
  std::string path;  // of the draft model; empty: there is none, and its plan is empty
  int page_slots = 32;
  int threads = 1;
  std::int64_t tokens = 0;  // of each text
  int texts = 1;
};

// `model`: the file of the model that it drafts for. Errors: those of read_draft_file.
Result<DraftPlan> plan_draft_model(const DraftPlanRequest& request, const gguf::File& model);

}  // namespace kvasir::cli
