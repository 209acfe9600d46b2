#include "server/api/dialect.h"

namespace kvasir::server {

Message message_of(const Choice& choice) {
  Message message{"assistant", {}};
  if (choice.parts.empty()) message.content = choice.result->text;
  for (const AnswerPiece& piece : choice.parts) switch (piece.kind) {
      case AnswerPiece::Kind::kContent: message.content += piece.text; break;
      case AnswerPiece::Kind::kReasoning: message.reasoning += piece.text; break;
      case AnswerPiece::Kind::kCallBegin: message.tool_calls.push_back({piece.id, piece.name, {}}); break;
      case AnswerPiece::Kind::kCallArguments:
        if (!message.tool_calls.empty()) message.tool_calls.back().arguments += piece.text;
        break;
      case AnswerPiece::Kind::kCallEnd: break;
    }
  return message;
}

}  // namespace kvasir::server
