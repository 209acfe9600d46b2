// Writes a conversation with tools as a prompt, and says how the answer will be written.
// Thread-safety: pure functions; a FormatCache may be used by any number of threads.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "chat/chat_template.h"
#include "dialogue/answer_form.h"
#include "kvasir/answer.h"
#include "kvasir/request.h"

namespace kvasir {

// The format of a template, found when it is first needed.
class FormatCache {
 public:
  const AnswerFormat& get(const ChatTemplate& chat, const Vocabulary& vocabulary);

 private:
  std::once_flag found_;
  AnswerFormat format_;
};

struct Conversation {
  ChatPrompt prompt;
  std::vector<Message> messages;             // as the template was given them
  std::unique_ptr<ChatTemplate> own;         // the template with the request's arguments; null: the model's own
  std::shared_ptr<const AnswerRules> rules;  // null: the answer is plain text
  // Bytes at the end of this prompt that the next turn's prompt replaces once this answer's thoughts are left out.
  // nullopt: not known.
  std::optional<std::size_t> bytes_not_in_next_prompt;
};

// `options`: its messages, template_arguments, tools, tool_choice and thinking count. Where the template cannot write
// tools, calls or results, they are written into messages in the form of Hermes. Errors: as ChatTemplate::render;
// kInvalidArgument for tools that cannot be read.
Result<Conversation> write_conversation(const ChatTemplate& chat, const Vocabulary& vocabulary, FormatCache& cache,
                                        const RequestOptions& options);

// Replaces what the template does not write, and ids that must name their tools: describes the tools in the system
// message (`in_user`: in the first message of the user), and turns calls into contents and results into messages of the
// user. `tools`: JSON, may be empty.
std::vector<Message> written_out(std::vector<Message> messages, std::string_view tools, const AnswerFormat& format,
                                 bool in_user);

}  // namespace kvasir
