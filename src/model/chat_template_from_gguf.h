// Makes the chat template of a model file.
// Thread-safety: pure function.
#pragma once

#include <memory>

#include "chat/chat_template.h"
#include "gguf/reader.h"
#include "kvasir/status.h"
#include "text/vocabulary.h"

namespace kvasir {

// `options.source` replaces the file's template; empty uses the file's, and an error in that is met when messages are
// written. Errors: kDataLoss if the file's template is not a string; otherwise as make_chat_template().
Result<std::unique_ptr<ChatTemplate>> chat_template_from_gguf(const gguf::File& file, const Vocabulary& vocabulary,
                                                              ChatTemplateOptions options = {});

}  // namespace kvasir
