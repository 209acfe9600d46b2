#include "cli/serve/set_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "cli/command.h"

namespace kvasir::cli {
namespace {

constexpr std::size_t kMostSearched = 12;

std::uint64_t total_of(const ModelSet& set) {
  std::uint64_t bytes = 0;
  for (const ModelChoice& model : set.models)
    if (model.refusal.ok()) bytes += model.size.total();
  return bytes;
}

bool is_usable(const ModelChoice& model) {
  return model.refusal.ok();
}

// Whether there are models that can be loaded, and these fit together.
bool all_fit(const ModelSet& set) {
  return std::ranges::any_of(set.models, is_usable) && (set.memory == 0 || total_of(set) <= set.memory);
}

// Returns the largest sets that fit together, each as the numbers of its models; a pinned default is in each. Empty for
// too many models.
std::vector<std::vector<std::size_t>> fitting_sets(const ModelSet& set) {
  std::vector<std::vector<std::size_t>> sets;
  const std::size_t count = set.models.size();
  if (count > kMostSearched) return sets;
  std::vector<unsigned> fitting;
  for (unsigned chosen = 1; chosen < 1U << count; ++chosen) {
    std::uint64_t bytes = 0;
    bool usable = set.pinned_for.empty() || (chosen & 1U) != 0;
    for (std::size_t i = 0; i < count; ++i) {
      if ((chosen >> i & 1U) == 0) continue;
      usable &= set.models[i].refusal.ok();
      bytes += set.models[i].size.total();
    }
    if (usable && (set.memory == 0 || bytes <= set.memory)) fitting.push_back(chosen);
  }
  for (const unsigned chosen : fitting) {
    const bool part =
        std::ranges::any_of(fitting, [&](unsigned other) { return other != chosen && (other & chosen) == chosen; });
    if (part) continue;
    std::vector<std::size_t>& members = sets.emplace_back();
    for (std::size_t i = 0; i < count; ++i)
      if ((chosen >> i & 1U) != 0) members.push_back(i);
  }
  return sets;
}

}  // namespace

Status check_planned(const ModelSet& set) {
  for (const ModelChoice& model : set.models)
    if (model.asked && !model.refusal.ok() && model.refusal.code() != StatusCode::kResourceExhausted)
      return model.refusal;
  return {};
}

std::string plan_text(const ModelSet& set) {
  std::size_t width = 5;
  for (const ModelChoice& model : set.models) width = std::max(width, printable(model.name, 100).size());
  std::string out = fmt::format("{:<{}}  {:>10}  {:>10}  {:>10}  {:>10}\n", "model", width, "weights", "KV memory",
                                "workspace", "total");
  for (const ModelChoice& model : set.models) {
    const std::string name = printable(model.name, 100);
    if (!model.refusal.ok()) {
      out += fmt::format("{:<{}}  cannot be loaded: {}\n", name, width, model.refusal.message());
      continue;
    }
    const server::ModelSize& size = model.size;
    out += fmt::format("{:<{}}  {:>10}  {:>10}  {:>10}  {:>10}{}\n", name, width, human_bytes(size.weights),
                       human_bytes(size.kv), human_bytes(size.workspace), human_bytes(size.total()),
                       model.preload ? "   (loaded at the start)" : "");
  }
  const Status starts = check_models(set);
  const std::string problem = starts.ok() ? std::string() : fmt::format("serve does not start: {}\n", starts.message());
  if (std::ranges::none_of(set.models, is_usable)) return out + "\nno model can be loaded\n" + problem;
  out += fmt::format("\n{} {}", std::ranges::all_of(set.models, is_usable) ? "all together" : "the others together",
                     human_bytes(total_of(set)));
  if (set.memory == 0) return out + "; there is no bound\n" + problem;
  out += fmt::format(", of {} of memory: {}\n", human_bytes(set.memory),
                     all_fit(set) ? "they fit" : "they do not fit, so models are exchanged");
  out += problem;
  if (all_fit(set)) return out;
  if (set.models.size() > kMostSearched)
    out += fmt::format("which of them fit together is listed for at most {} models\n", kMostSearched);
  for (const std::vector<std::size_t>& members : fitting_sets(set)) {
    std::string names;
    for (const std::size_t i : members) names += (names.empty() ? "" : ", ") + printable(set.models[i].name, 100);
    out += fmt::format("these fit together: {}\n", names);
  }
  return out;
}

nlohmann::ordered_json plan_json(const ModelSet& set) {
  Json models = Json::array();
  for (const ModelChoice& model : set.models)
    models.push_back({{"model", model.name},
                      {"path", model.settings.engine.model},
                      {"preload", model.preload},
                      {"trained_context", model.summary.context},
                      {"weight_bytes", model.size.weights},
                      {"kv_bytes", model.size.kv},
                      {"workspace_bytes", model.size.workspace},
                      {"total_bytes", model.size.total()},
                      {"refusal", model.refusal.ok() ? Json() : Json(model.refusal.message())}});
  Json sets = Json::array();
  for (const std::vector<std::size_t>& members : fitting_sets(set)) {
    Json& names = sets.emplace_back(Json::array());
    for (const std::size_t i : members) names.push_back(set.models[i].name);
  }
  const Status starts = check_models(set);
  return {{"models", std::move(models)},
          {"memory", set.memory == 0 ? Json() : Json(set.memory)},
          {"total_bytes", total_of(set)},
          {"fits", all_fit(set)},
          {"refusal", starts.ok() ? Json() : Json(starts.message())},
          {"fit_together", set.models.size() > kMostSearched ? Json() : std::move(sets)}};
}

}  // namespace kvasir::cli
