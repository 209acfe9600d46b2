// How the hidden states of a text's tokens become one vector, its embedding.
#pragma once

namespace kvasir {

// A hidden state is a row of the residual stream behind the model's last norm: the input of the output matrix. In GGUF
// files {architecture}.pooling_type is 0, 1 or 3 for these.
enum class Pooling {
  kNone,  // no embedding
  kMean,  // the mean over all tokens
  kLast,  // the last token's
};

}  // namespace kvasir
