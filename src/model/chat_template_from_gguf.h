// Makes the chat template of a model file.
// Thread-safety: pure function.
#pragma once

#include <memory>
#include <string_view>

#include "chat/chat_template.h"
#include "gguf/reader.h"
#include "kvasir/status.h"
#include "text/vocabulary.h"

namespace kvasir {

// `instead`: Jinja source that replaces the file's template; empty uses the file's. Errors: kDataLoss if the file's
// template is not a string.
Result<std::unique_ptr<ChatTemplate>> chat_template_from_gguf(const gguf::File& file, const Vocabulary& vocabulary,
                                                              std::string_view instead = {});

}  // namespace kvasir
