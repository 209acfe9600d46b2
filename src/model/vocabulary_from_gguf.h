// Reads a tokenizer's vocabulary from a model file's metadata.
// Thread-safety: pure function.
#pragma once

#include "gguf/reader.h"
#include "kvasir/status.h"
#include "text/vocabulary.h"

namespace kvasir {

// Where a key is absent, the defaults of the format hold. SPM: tokens 1, 2 and 0 are BOS, EOS and unknown if they are
// of that kind, BOS is added, EOS is not, a space is put in front. Byte-level BPE: token 11 is BOS and EOS if it is a
// control token, the pre-tokenizer tells whether BOS is added, and is taken for GPT-2's if the file names none; without
// token types all tokens are normal but those that the file names as BOS, EOS or another end. Tokens that are written
// like a well-known end are control tokens, whatever the file says, and end generation (text/end_tokens.h).
// Errors: kUnsupported for other tokenizers and unknown pre-tokenizers, kDataLoss for keys that are missing, malformed
// or disagree. Merges are read by make_bpe_tokenizer().
Result<Vocabulary> vocabulary_from_gguf(const gguf::File& file);

}  // namespace kvasir
