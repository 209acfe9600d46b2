// A llama model whose weights are computed, not trained, and which recalls exactly: wherever the last `match` tokens
// occurred before, it continues as the text did then. The two-layer induction circuit (Elhage et al., "A Mathematical
// Framework for Transformer Circuits", 2021; Olsson et al., "In-context Learning and Induction Heads", 2022), with
// codes and frequencies chosen so that its margins can be stated.
//
// Tokens have codes of c signs (c = 32, 64 or 128, by the size of the vocabulary), of which no two agree in more than
// 5/8 of the signs: their inner product is at most c/4. Written n = match, the residual stream holds
//
//   block 0        the code of the token itself: the embedding
//   blocks 1 … n   the codes of the tokens at distance 1 … n before it: written by layer 0
//   block n + 1    the code of the token to come: written by layer 1, read by the output matrix
//   2 dimensions   a constant; the mark of BOS, whose code is zero
//
// so that its norm is known behind each layer, and the RMS norms only undo a known factor. The FFNs are zero.
//
// Layer 0: query head j looks at distance j. All keys are one constant vector, the query is that vector turned by
// -j·ω, so that the score at distance Δ is S·Σ_k cos(ω_k (Δ - j)). With ω_k = π/2^k, k = 0 … K-1 (base 2^K over K
// rotated pairs, positions divided by 1/π), whatever Δ ≠ j with |Δ - j| < 2^K has a pair at exactly half a turn:
// its score is at least 2S below the peak. S = 12. K = 15, or more for contexts that need it.
//
// Layer 1: query blocks 0 … n-1 meet key blocks 1 … n in dimensions that are not rotated: the score is B per token
// that matches, wherever it is, and at most B/4 per one that does not. B = 40. The key of BOS scores (n - 1/2)·B and
// its value is zero, so that a text without a match of n tokens gives no output (the sink of this head): all logits
// are equal but that of EOS, which is likeliest. Without BOS in the cache, the best partial match is continued,
// whatever that is. Equal matches share their weight: their continuations are equally likely. All heads of layer 1 do
// the same.
//
// The logit of the token to come is 20, of others at most 5: its probability is at least 0.99 with 4096 tokens.
//
// What follows for policies: recall needs the tokens of the fact in layer 1, as they were when read; nothing of it in
// layer 0. There, only the n most recent tokens matter. Scores of layer 1 do not depend on positions, those of layer 0
// on differences of them alone, so original and compacted positions serve alike.
//
// Thread-safety: pure functions of their arguments.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "support/random_model.h"
#include "text/vocabulary.h"

namespace kvasir::test {

struct InductionSpec {
  // With 5, any string of 5 symbols behind a prefix of its own is recalled, repeated symbols or not: a context that
  // holds the token before the string and up to 4 symbols occurs once. With n < 5, strings are ambiguous in which n
  // symbols repeat behind the first ones (n = 3: 12121, 44447).
  int match = 5;
  int vocab = 320;                       // of invented_vocabulary, up to 16384; unused with `vocabulary`
  std::optional<Vocabulary> vocabulary;  // must have BOS
  int context = 4096;                    // trained context that the file claims
  std::string dtype = "f32";             // as in RandomModelSpec
};

std::vector<std::byte> make_induction_model(const InductionSpec& spec);

// The signs, +1 and -1, that stand for a token: (-1)^Tr(a x^3 + b x) over the elements x of GF(2^bits), with token =
// a·2^bits + b: the dual of the two-error-correcting BCH code (MacWilliams & Sloane, "The Theory of Error-Correcting
// Codes", 1977, ch. 15). REQUIRES: bits from 5 to 7, token from 0 to 4^bits - 1.
std::vector<int> induction_code(int bits, int token);
int induction_code_bits(int vocab);  // the least that holds it

}  // namespace kvasir::test
