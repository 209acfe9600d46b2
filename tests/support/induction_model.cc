#include "support/induction_model.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <numbers>

#include "base/check.h"

namespace kvasir::test {
namespace {

constexpr double kPreviousScore = 12;  // S
constexpr double kMatchScore = 40;     // B
constexpr double kLogit = 20;          // of the token to come
constexpr double kEndLogit = 1;        // of EOS, always
constexpr double kEpsilon = 1e-5;

// GF(2^bits): bit i of an element is the coefficient of x^i.
class Field {
 public:
  explicit Field(int bits) : bits_(bits) {
    KVASIR_CHECK(bits >= 5 && bits <= 7);
    constexpr std::array<unsigned, 3> kIrreducible = {0b100101, 0b1000011, 0b10000011};
    modulus_ = kIrreducible[static_cast<std::size_t>(bits - 5)];
  }
  unsigned multiply(unsigned a, unsigned b) const {
    unsigned product = 0;
    for (; b != 0; b >>= 1) {
      if ((b & 1) != 0) product ^= a;
      a <<= 1;
      if ((a >> bits_) != 0) a ^= modulus_;
    }
    return product;
  }
  // The sum of the conjugates: 0 or 1.
  unsigned trace(unsigned a) const {
    unsigned sum = 0;
    for (int i = 0; i < bits_; ++i, a = multiply(a, a)) sum ^= a;
    KVASIR_CHECK(sum <= 1);
    return sum;
  }

 private:
  int bits_;
  unsigned modulus_;
};

struct Matrix {
  Matrix(int rows_in, int columns_in)
      : rows(rows_in),
        columns(columns_in),
        values(static_cast<std::size_t>(rows) * static_cast<std::size_t>(columns)) {}
  void set(int row, int column, double value) {
    KVASIR_CHECK(row >= 0 && row < rows && column >= 0 && column < columns);
    values[static_cast<std::size_t>(row) * static_cast<std::size_t>(columns) + static_cast<std::size_t>(column)] =
        static_cast<float>(value);
  }
  // A c x c block that passes c dimensions through.
  void copy(int row, int column, int count, double factor) {
    for (int i = 0; i < count; ++i) set(row + i, column + i, factor);
  }
  int rows;
  int columns;
  std::vector<float> values;
};

class InductionWeights {
 public:
  explicit InductionWeights(const InductionSpec& spec) : n_(spec.match) {
    KVASIR_CHECK(n_ >= 1 && n_ <= 8 && spec.context >= 1);
    model_.vocabulary = spec.vocabulary ? *spec.vocabulary : invented_vocabulary(spec.vocab);
    KVASIR_CHECK(model_.vocabulary->bos && model_.vocabulary->eos);
    model_.vocab = static_cast<int>(model_.vocabulary->pieces.size());
    bits_ = induction_code_bits(model_.vocab);
    c_ = 1 << bits_;
    const int pairs = std::max(15, static_cast<int>(std::bit_width(static_cast<unsigned>(spec.context))));
    model_.name = "induction";
    model_.layers = 2;
    model_.heads = n_;
    model_.kv_heads = 1;
    model_.rotary = 2 * pairs;
    model_.head_dim = (sink_dimension() + 1 + 15) / 16 * 16;
    model_.d = (bos_mark() + 1 + 31) / 32 * 32;
    model_.ffn = 32;
    model_.dtype = spec.dtype;
    model_.tied = false;
    model_.rope_base = static_cast<float>(1U << pairs);
    model_.rope_scaling = RopeScaling::kLinear;
    model_.rope_factor = std::numbers::inv_pi_v<float>;
    model_.context = spec.context;
    model_.rms_epsilon = static_cast<float>(kEpsilon);
  }

  const RandomModelSpec& model() const { return model_; }

  std::vector<float> operator()(const std::string& name, int rows, int columns) const {
    if (name == "blk.0.attn_norm.weight") return norm(1);
    if (name == "blk.1.attn_norm.weight") return norm(1 + n_);
    if (name == "output_norm.weight") return norm(2 + n_);
    if (name.ends_with("norm.weight")) return norm(0);
    Matrix matrix(rows, columns);
    if (name == "token_embd.weight") embed(matrix);
    if (name == "output.weight") predict(matrix);
    if (name == "blk.0.attn_q.weight") previous_queries(matrix);
    if (name == "blk.0.attn_k.weight") previous_keys(matrix);
    if (name == "blk.1.attn_q.weight") induction_queries(matrix);
    if (name == "blk.1.attn_k.weight") induction_keys(matrix);
    if (name.ends_with("attn_v.weight")) matrix.copy(0, block(0), c_, 1);
    if (name == "blk.0.attn_output.weight")
      for (int head = 0; head < n_; ++head) matrix.copy(block(1 + head), head * model_.head_dim, c_, 1);
    if (name == "blk.1.attn_output.weight")
      for (int head = 0; head < n_; ++head) matrix.copy(block(1 + n_), head * model_.head_dim, c_, 1.0 / n_);
    return matrix.values;  // the FFN's stay zero
  }

 private:
  // Where things are in the residual stream.
  int block(int index) const { return index * c_; }
  int constant() const { return block(n_ + 2); }
  int bos_mark() const { return constant() + 1; }
  double one() const { return std::sqrt(static_cast<double>(c_)); }  // of the constant and the mark: a block's norm

  // Where things are in queries and keys.
  int content(int index) const { return model_.rotary + index * c_; }
  int sink_dimension() const { return content(n_); }
  double root() const { return std::sqrt(static_cast<double>(model_.head_dim)); }  // scores are divided by it

  // Undoes the RMS norm of a stream of that many blocks and the constant. Of 0: of no use to anyone.
  double rms(int blocks) const { return std::sqrt((blocks + 1) * one() * one() / model_.d + kEpsilon); }
  std::vector<float> norm(int blocks) const {
    return std::vector<float>(static_cast<std::size_t>(model_.d), static_cast<float>(rms(blocks)));
  }

  void embed(Matrix& matrix) const {
    for (int token = 0; token < model_.vocab; ++token) {
      matrix.set(token, constant(), one());
      if (token == *model_.vocabulary->bos) {
        matrix.set(token, bos_mark(), one());
        continue;
      }
      const std::vector<int> code = induction_code(bits_, token);
      for (int i = 0; i < c_; ++i) matrix.set(token, block(0) + i, code[static_cast<std::size_t>(i)]);
    }
  }

  void predict(Matrix& matrix) const {
    for (int token = 0; token < model_.vocab; ++token) {
      const std::vector<int> code = induction_code(bits_, token);
      for (int i = 0; i < c_; ++i)
        matrix.set(token, block(1 + n_) + i, kLogit / c_ * code[static_cast<std::size_t>(i)]);
    }
    matrix.set(*model_.vocabulary->eos, constant(), kEndLogit / one());
  }

  void previous_keys(Matrix& matrix) const {
    for (int pair = 0; pair < model_.rotary / 2; ++pair) matrix.set(2 * pair, constant(), 1 / one());
  }

  void previous_queries(Matrix& matrix) const {
    for (int head = 0; head < n_; ++head) {
      for (int pair = 0; pair < model_.rotary / 2; ++pair) {
        const double angle = -(head + 1) * std::numbers::pi / std::exp2(pair);
        const int row = head * model_.head_dim + 2 * pair;
        matrix.set(row, constant(), kPreviousScore * root() * std::cos(angle) / one());
        matrix.set(row + 1, constant(), kPreviousScore * root() * std::sin(angle) / one());
      }
    }
  }

  void induction_keys(Matrix& matrix) const {
    matrix.copy(content(0), block(1), n_ * c_, 1);
    // BOS has no blocks, so its stream is a constant and a mark: shorter than the norm takes it for.
    const double mark = one() * rms(1 + n_) / rms(1);
    matrix.set(sink_dimension(), bos_mark(), 1 / mark);
  }

  void induction_queries(Matrix& matrix) const {
    for (int head = 0; head < n_; ++head) {
      const int first = head * model_.head_dim;
      matrix.copy(first + content(0), block(0), n_ * c_, kMatchScore * root() / c_);
      matrix.set(first + sink_dimension(), constant(), (n_ - 0.5) * kMatchScore * root() / one());
    }
  }

  RandomModelSpec model_;
  int n_;
  int bits_ = 0;
  int c_ = 0;
};

}  // namespace

int induction_code_bits(int vocab) {
  for (int bits = 5; bits <= 7; ++bits)
    if (vocab <= 1 << (2 * bits)) return bits;
  KVASIR_CHECK(vocab <= 1 << 14);
  return 7;
}

std::vector<int> induction_code(int bits, int token) {
  const Field field(bits);
  KVASIR_CHECK(token >= 0 && token < 1 << (2 * bits));
  const unsigned a = static_cast<unsigned>(token) >> bits;
  const unsigned b = static_cast<unsigned>(token) & ((1U << bits) - 1);
  std::vector<int> code;
  for (unsigned x = 0; x < 1U << bits; ++x) {
    const unsigned cube = field.multiply(x, field.multiply(x, x));
    code.push_back(field.trace(field.multiply(a, cube) ^ field.multiply(b, x)) == 0 ? 1 : -1);
  }
  return code;
}

std::vector<std::byte> make_induction_model(const InductionSpec& spec) {
  const InductionWeights weights(spec);
  return make_model(weights.model(), weights);
}

}  // namespace kvasir::test
