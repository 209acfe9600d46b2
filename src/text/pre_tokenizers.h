// Lists the pre-tokenizers by their names in GGUF's tokenizer.ggml.pre. A pre-tokenizer cuts a text into words, within
// which byte-level BPE merges. Thread-safety: constant data.
#pragma once

#include <string_view>
#include <vector>

#include "kvasir/status.h"

namespace kvasir {

struct PreTokenizer {
  std::vector<std::string_view> names;        // synonyms
  std::vector<std::string_view> expressions;  // for RegexSplitter: applied one after another
  bool ignore_merges = false;                 // a word that is a piece becomes that token without merging
  bool add_bos = false;                       // default where the file does not say
};

// Returns all known pre-tokenizers. Each splits any text in linear time.
const std::vector<PreTokenizer>& pre_tokenizers();

// The default for files that name no pre-tokenizer: GPT-2's.
inline constexpr std::string_view kDefaultPreTokenizer = "gpt-2";

// Errors: kUnsupported for an unknown name, with the known ones.
Result<const PreTokenizer*> find_pre_tokenizer(std::string_view name);

}  // namespace kvasir
