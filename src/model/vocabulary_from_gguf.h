// Reads a tokenizer's vocabulary from a model file's metadata.
// Thread-safety: pure function.
#pragma once

#include "gguf/reader.h"
#include "kvasir/status.h"
#include "text/vocabulary.h"

namespace kvasir {

// Where a key is absent, the defaults of SPM hold: tokens 1, 2 and 0 are BOS, EOS and unknown if they are of that kind,
// BOS is added, EOS is not, a space is put in front. Tokens that are written like a well-known end of turn are control
// tokens, whatever the file says; the first of them is `eot` unless the file names one.
// Errors: kUnsupported for a tokenizer other than SPM, kDataLoss for keys that are missing, malformed or disagree.
Result<Vocabulary> vocabulary_from_gguf(const gguf::File& file);

}  // namespace kvasir
