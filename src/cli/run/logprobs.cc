#include "cli/run/logprobs.h"

#include <cmath>

namespace kvasir::cli {
namespace {

Json to_json(const TokenChoice& choice) {
  // JSON has no infinity: a token that cannot be drawn gets null.
  const bool finite = std::isfinite(choice.log_probability);
  return {{"id", choice.id},
          {"piece", token_name(choice.bytes)},
          {"logprob", finite ? Json(choice.log_probability) : Json(nullptr)}};
}

}  // namespace

void add_choices(Json& report, const GenerateOptions& options, const GenerateResult& result) {
  if (options.logprobs < 0) return;
  Json list = Json::array();
  for (const GeneratedToken& generated : result.choices) {
    Json token = to_json(generated.token);
    token["top"] = Json::array();
    for (const TokenChoice& choice : generated.likeliest) token["top"].push_back(to_json(choice));
    list.push_back(std::move(token));
  }
  report["logprobs"] = std::move(list);
}

}  // namespace kvasir::cli
