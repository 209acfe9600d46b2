#include "server/api/dialect.h"

namespace kvasir::server {

Message message_of(const Choice& choice) {
  Message message{"assistant", {}};
  if (choice.answer == nullptr) {
    message.content = choice.result->text;
    return message;
  }
  message.content = choice.answer->content;
  message.reasoning = choice.answer->reasoning;
  message.tool_calls = choice.answer->calls;
  return message;
}

}  // namespace kvasir::server
