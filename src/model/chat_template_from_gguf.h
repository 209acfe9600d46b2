// The chat template of a model file.
// Thread-safety: pure function.
#pragma once

#include <memory>
#include <string_view>

#include "gguf/reader.h"
#include "kvasir/status.h"
#include "text/chat_template.h"
#include "text/vocabulary.h"

namespace kvasir {

// `instead`: Jinja source that takes the place of the file's own, unless it is empty. Errors: kDataLoss if the file's
// is no string.
Result<std::unique_ptr<ChatTemplate>> chat_template_from_gguf(const gguf::File& file, const Vocabulary& vocabulary,
                                                              std::string_view instead = {});

}  // namespace kvasir
