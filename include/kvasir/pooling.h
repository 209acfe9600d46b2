// How the hidden states of a text's tokens become one vector, its embedding.
#pragma once

namespace kvasir {

// A hidden state is a row of the residual stream behind the model's last norm: what the output matrix is multiplied
// with. The values of llama.cpp's pooling types (GGUF: {architecture}.pooling_type 0, 1 and 3).
enum class Pooling {
  kNone,  // no embedding
  kMean,  // the mean over all tokens
  kLast,  // the last token's
};

}  // namespace kvasir
