// Reads a tokenizer's vocabulary from a model file's metadata.
// Thread-safety: pure function.
#pragma once

#include "gguf/reader.h"
#include "kvasir/status.h"
#include "text/vocabulary.h"

namespace kvasir {

// Reads the vocabulary. Absent keys take the defaults of the format:
//   - SPM: tokens 1, 2 and 0 are BOS, EOS and unknown if they are of that kind.
//     BOS is added, EOS is not.
//     A space is put in front.
//   - Byte-level BPE: token 11 is BOS and EOS if it is a control token. The pre-tokenizer determines whether BOS is
//     added; it is GPT-2's if the file names none. Without token types, all tokens are normal except those that the
//     file names as BOS, EOS or another end.
// Tokens spelt like a well-known end token become control tokens whatever the file says, and end generation
// (text/end_tokens.h). make_bpe_tokenizer() reads the merges.
// Errors: kUnsupported for other tokenizers and unknown pre-tokenizers; kDataLoss for keys that are missing, malformed
// or contradictory.
Result<Vocabulary> vocabulary_from_gguf(const gguf::File& file);

}  // namespace kvasir
