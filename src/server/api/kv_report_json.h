// Reports keys and values outside the cache's pages, drafts and promises of quality as JSON, for answers and for --json
// of commands. Json: an nlohmann::basic_json, ordered or not.
#pragma once

#include <utility>

#include "kvasir/quality.h"
#include "kvasir/result.h"

namespace kvasir {

template <class Json>
Json fetched_json(const KvReport::Fetched& fetched) {
  return {{"bytes", fetched.bytes},
          {"rounds", fetched.rounds},
          {"stalls", fetched.stalls},
          {"stall_seconds", fetched.stall_seconds},
          {"seconds", fetched.seconds}};
}

template <class Json>
Json draft_json(const DraftReport& draft) {
  return {{"drafted", draft.drafted},
          {"came_true", draft.came_true},
          {"refused", draft.refused.empty() ? Json() : Json(draft.refused)}};
}

// Figures that only checks can give are null before the first.
template <class Json>
Json quality_json(const QualityReport& quality) {
  Json budgets = Json::array();
  for (const QualityReport::Change& change : quality.budgets) budgets.push_back({change.token, change.budget});
  const bool checked = quality.checks > 0;
  return {{"kl_bound", quality.kl_bound},
          {"kl_mean", checked ? Json(quality.kl_mean) : Json()},
          {"kl_max", checked ? Json(quality.kl_max) : Json()},
          {"held", checked ? Json(quality.held) : Json()},
          {"compared", quality.compared},
          {"checks", quality.checks},
          {"unchecked", quality.unchecked},
          {"budget", quality.budget},
          {"budgets", std::move(budgets)},
          {"shadow_tokens", quality.shadow_tokens},
          {"reread_tokens", quality.reread_tokens},
          {"shadow_seconds", quality.shadow_seconds},
          {"shadow_bytes", quality.shadow_bytes},
          {"rows_bytes", quality.rows_bytes}};
}

// Adds `windows` and `states` if layers of the model have them, `repeated` if the text was repeated, and `demotion` and
// `offload` if the policy demotes or offloads.
template <class Json>
void add_places(const KvReport& kv, Json* json) {
  for (const KvReport::WindowGroup& group : kv.windows)
    (*json)["windows"].push_back(
        {{"layers", group.layers}, {"window", group.window}, {"kept", group.kept}, {"bytes", group.bytes}});
  for (const KvReport::StateGroup& group : kv.states)
    (*json)["states"].push_back({{"layers", group.layers}, {"bytes", group.bytes}});
  if (kv.repeated > 0) (*json)["repeated"] = kv.repeated;
  if (kv.demotes)
    (*json)["demotion"] = {
        {"tokens", kv.demoted},    {"bytes", kv.demoted_bytes}, {"file_bytes", kv.demoted_file_bytes},
        {"recalled", kv.recalled}, {"fetched", kv.fetched},     {"wait_seconds", kv.recall_seconds}};
  if (kv.offloads)
    (*json)["offload"] = {{"hot_bytes", kv.hot_bytes},
                          {"cold_bytes", kv.cold_bytes},
                          {"write_wait_seconds", kv.write_wait_seconds},
                          {"chosen", fetched_json<Json>(kv.fetched_chosen)},
                          {"prompts", fetched_json<Json>(kv.fetched_prompts)}};
}

}  // namespace kvasir
