#include "model/chat_template_from_gguf.h"

#include "base/status.h"

namespace kvasir {

Result<std::unique_ptr<ChatTemplate>> chat_template_from_gguf(const gguf::File& file, const Vocabulary& vocabulary,
                                                              std::string_view instead) {
  static constexpr std::string_view kKey = "tokenizer.chat_template";
  std::string_view source = instead;
  if (source.empty() && file.find(kKey) != nullptr) {
    KVASIR_ASSIGN_OR_RETURN(source, file.get_string(kKey));
  }
  return make_chat_template(vocabulary, source);
}

}  // namespace kvasir
