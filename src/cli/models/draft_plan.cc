#include "cli/models/draft_plan.h"

#include <algorithm>
#include <memory>

#include "backend/cpu/cpu_backend.h"
#include "base/status.h"
#include "model/vocabulary_from_gguf.h"
#include "runtime/draft_file.h"
#include "runtime/loaded_model.h"
#include "scheduler/draft_model.h"

namespace kvasir::cli {

Result<DraftPlan> plan_draft_model(const DraftPlanRequest& request, const gguf::File& model) {
  DraftPlan plan;
  if (request.path.empty()) return plan;
  KVASIR_ASSIGN_OR_RETURN(const Vocabulary vocabulary, vocabulary_from_gguf(model));
  KVASIR_ASSIGN_OR_RETURN(const DraftFile draft, read_draft_file(request.path, vocabulary));
  KVASIR_ASSIGN_OR_RETURN(const KvCacheShape shape,
                          kv_cache_shape(draft.config, EngineOptions().kv_type, request.page_slots));
  plan.weights = draft.weight_bytes;
  plan.kv = plan_draft_texts(shape, draft.config.context, request.tokens, request.texts);
  const std::unique_ptr<RetentionPolicy> policy = draft_policy(draft.config.context);
  const int rows = static_cast<int>(std::clamp<std::int64_t>(request.tokens, 1, kDraftRows));
  plan.workspace = plan.kv.batch_bytes +
                   cpu_workspace_bytes(backend_shape(draft.config),
                                       plan_workspace(shape, *policy, plan.kv, rows, request.texts), request.threads);
  return plan;
}

}  // namespace kvasir::cli
