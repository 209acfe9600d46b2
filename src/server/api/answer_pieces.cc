#include "server/api/answer_pieces.h"

#include <nlohmann/json.hpp>
#include <utility>

namespace kvasir::server {
namespace {

nlohmann::json call_json(const ToolCall& call) {
  return {{"id", call.id}, {"type", "function"}, {"function", {{"name", call.name}, {"arguments", call.arguments}}}};
}

}  // namespace

std::vector<nlohmann::json> deltas_of(std::span<const AnswerPiece> pieces) {
  using Kind = AnswerPiece::Kind;
  std::vector<nlohmann::json> deltas;
  for (const AnswerPiece& piece : pieces) {
    nlohmann::json call;
    switch (piece.kind) {
      case Kind::kContent:
      case Kind::kCallFails: deltas.push_back({{"content", piece.text}}); continue;
      case Kind::kReasoning: deltas.push_back({{"reasoning_content", piece.text}}); continue;
      case Kind::kCallBegins: call = call_json({piece.id, piece.name, ""}); break;
      case Kind::kArguments: call = {{"function", {{"arguments", piece.text}}}}; break;
      case Kind::kCallEnds:
      case Kind::kCallBreaks: continue;
    }
    call["index"] = piece.call;
    deltas.push_back({{"tool_calls", nlohmann::json::array({std::move(call)})}});
  }
  return deltas;
}

nlohmann::json message_of(const Answer& answer) {
  nlohmann::json message = {{"role", "assistant"}, {"content", answer.content}, {"refusal", nullptr}};
  if (!answer.reasoning.empty()) message["reasoning_content"] = answer.reasoning;
  if (answer.calls.empty()) return message;
  if (answer.content.empty()) message["content"] = nullptr;
  for (const ToolCall& call : answer.calls) message["tool_calls"].push_back(call_json(call));
  return message;
}

}  // namespace kvasir::server
