#include "model/chat_template_from_gguf.h"

#include "base/status.h"

namespace kvasir {

Result<std::unique_ptr<ChatTemplate>> chat_template_from_gguf(const gguf::File& file, const Vocabulary& vocabulary,
                                                              ChatTemplateOptions options) {
  static constexpr std::string_view kKey = "tokenizer.chat_template";
  if (options.source.empty() && file.find(kKey) != nullptr) {
    KVASIR_ASSIGN_OR_RETURN(options.source, file.get_string(kKey));
    options.defer_errors = true;
  }
  return make_chat_template(vocabulary, options);
}

}  // namespace kvasir
