// How byte-level BPE cuts a text into words before it merges within them, by the names of GGUF's tokenizer.ggml.pre.
// Thread-safety: constant data.
#pragma once

#include <string_view>
#include <vector>

#include "kvasir/status.h"

namespace kvasir {

struct PreTokenizer {
  std::vector<std::string_view> names;        // all mean the same
  std::vector<std::string_view> expressions;  // for RegexSplitter: applied one after another
  bool ignore_merges = false;                 // a word that is a piece is that token, whatever the merges make of it
  bool add_bos = false;                       // unless the file says otherwise
};

// All there are. Each splits any text in linear time.
const std::vector<PreTokenizer>& pre_tokenizers();

// What a file that names none is taken for: that of GPT-2, after which its kind of tokenizer is called.
inline constexpr std::string_view kDefaultPreTokenizer = "gpt-2";

// Errors: kUnsupported for an unknown name, with the known ones.
Result<const PreTokenizer*> find_pre_tokenizer(std::string_view name);

}  // namespace kvasir
