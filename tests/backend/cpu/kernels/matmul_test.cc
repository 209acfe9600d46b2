#include <cmath>
#include <cstring>
#include <numeric>

#include "backend/cpu/kernels/fenced.h"
#include "backend/cpu/kernels/kernel_test.h"
#include "support/random_blocks.h"
#include "tensor/dequantize.h"

namespace kvasir::test {
namespace {

// Sizes of rows that a type can have.
std::vector<int> input_counts(DType type) {
  const int block = static_cast<int>(dtype_traits(type).block_elements);
  return block == 1 ? std::vector<int>{1, 32, 65} : std::vector<int>{block, 3 * block};
}

// The least multiple of the type's block that is at least `inputs`.
int whole_blocks(DType type, int inputs) {
  const int block = static_cast<int>(dtype_traits(type).block_elements);
  return (inputs + block - 1) / block * block;
}

// Weights as a file holds them, the values they stand for, and their packed form.
struct Matrix {
  DType type;
  int outputs;
  int inputs;
  std::vector<double> values;  // [outputs][inputs]
  Fenced<std::byte> packed;

  PackedMatrix view() const { return {type, outputs, inputs, packed.data()}; }
};

Matrix make_matrix(DType type, int outputs, int inputs, Random& random) {
  const auto count = static_cast<std::size_t>(outputs) * static_cast<std::size_t>(inputs);
  std::vector<std::byte> rows;
  std::vector<double> values(count);
  const auto put = [&](const void* p, std::size_t size) {
    const auto* bytes = static_cast<const std::byte*>(p);
    rows.insert(rows.end(), bytes, bytes + size);
  };
  if (is_quantized(type)) {
    std::mt19937_64 bits(random.bits());
    rows = random_blocks(type, count, 0.5, bits);
    const DTypeTraits& traits = dtype_traits(type);
    std::vector<float> block(traits.block_elements);
    for (std::size_t b = 0; b < count / traits.block_elements; ++b) {
      dequantize_block(type, rows.data() + b * traits.block_bytes, block.data());
      std::copy(block.begin(), block.end(), values.begin() + static_cast<std::ptrdiff_t>(b * traits.block_elements));
    }
  } else {
    for (std::size_t i = 0; i < count; ++i) {
      const float value = random.symmetric();
      if (type == DType::kF32) {
        put(&value, 4);
        values[i] = value;
      } else {
        const std::uint16_t bits = type == DType::kF16 ? f32_to_f16(value) : f32_to_bf16(value);
        put(&bits, 2);
        values[i] = type == DType::kF16 ? f16_to_f32(bits) : bf16_to_f32(bits);
      }
    }
  }
  Matrix matrix{type, outputs, inputs, std::move(values),
                Fenced<std::byte>(kPanelPacking.bytes(type, outputs, inputs), std::size_t{64})};
  kPanelPacking.pack(matrix.view(), rows.data(), {}, 0, matrix.view().panels(), matrix.packed.data());
  EXPECT_TRUE(matrix.packed.intact());
  return matrix;
}

// Rows [first, first + rows) of `x`, in the form a type of weights asks for. Unused places of the last group of
// quantised rows hold garbage.
class Rows {
 public:
  Rows(const KernelTable& table, DType type, const std::vector<float>& x, int inputs, int first, int rows)
      : rounds_to_bf16_(type == DType::kBF16 && table.rounds_bf16_rows),
        rows_(rows),
        inputs_(inputs),
        f32_(std::vector<float>(x.begin() + static_cast<std::ptrdiff_t>(first) * inputs,
                                x.begin() + static_cast<std::ptrdiff_t>(first + rows) * inputs)),
        q8_(is_quantized(type) ? places() * kQ8Block : 0, std::size_t{64}),
        scale_(is_quantized(type) ? places() : 0),
        scaled_sum_(is_quantized(type) ? places() : 0),
        sum_(is_quantized(type) ? places() : 0),
        half_sum_(is_quantized(type) ? 2 * places() : 0) {
    if (!is_quantized(type)) return;
    const MutableQ8Rows all{q8_.data(), scale_.data(), scaled_sum_.data(), sum_.data(), half_sum_.data()};
    for (int r = 0; r < rows; ++r)
      table.quantize_q8(f32_.data() + static_cast<std::size_t>(r) * static_cast<std::size_t>(inputs), inputs,
                        all.at(place(r, 0)));
    EXPECT_TRUE(q8_.intact() && scale_.intact() && scaled_sum_.intact() && sum_.intact() && half_sum_.intact());
  }

  Activations view() const {
    Activations view;
    view.rows = rows_;
    view.inputs = inputs_;
    view.f32 = f32_.data();
    view.q8 = {q8_.data(), scale_.data(), scaled_sum_.data(), sum_.data(), half_sum_.data()};
    return view;
  }

  // What the kernel is given, as a number.
  double value(DType type, int row, int input) const {
    if (!is_quantized(type)) {
      const float x =
          f32_[static_cast<std::size_t>(row) * static_cast<std::size_t>(inputs_) + static_cast<std::size_t>(input)];
      return rounds_to_bf16_ ? bf16_to_f32(f32_to_bf16(x)) : x;
    }
    const std::size_t at = place(row, input / kQ8Block);
    return static_cast<double>(scale_[at]) * q8_[at * kQ8Block + static_cast<std::size_t>(input % kQ8Block)];
  }

 private:
  std::size_t blocks() const { return static_cast<std::size_t>(inputs_ / kQ8Block); }
  std::size_t places() const {
    return static_cast<std::size_t>((rows_ + kRowGroup - 1) / kRowGroup * kRowGroup) * blocks();
  }
  std::size_t place(int row, int block) const {
    return (static_cast<std::size_t>(row / kRowGroup) * blocks() + static_cast<std::size_t>(block)) * kRowGroup +
           static_cast<std::size_t>(row % kRowGroup);
  }

  bool rounds_to_bf16_;
  int rows_;
  int inputs_;
  Fenced<float> f32_;
  Fenced<std::int8_t> q8_;
  Fenced<float> scale_;
  Fenced<float> scaled_sum_;
  Fenced<std::int32_t> sum_;
  Fenced<std::int32_t> half_sum_;
};

// The product of all panels, [rows][outputs].
std::vector<float> multiply(const KernelTable& table, const Matrix& matrix, const Rows& x) {
  const PackedMatrix weights = matrix.view();
  const Activations view = x.view();
  const auto outputs = static_cast<std::size_t>(matrix.outputs);
  Fenced<float> out(static_cast<std::size_t>(view.rows) * outputs);
  table.matmul(weights, view, 0, weights.panels(), out.data(), outputs);
  EXPECT_TRUE(out.intact());
  return out.copy();
}

void expect_product(const Matrix& matrix, const Rows& x, int rows, const float* out, std::size_t stride) {
  for (int r = 0; r < rows; ++r) {
    for (int o = 0; o < matrix.outputs; ++o) {
      double sum = 0;
      double size = 0;
      for (int i = 0; i < matrix.inputs; ++i) {
        const double term = matrix.values[static_cast<std::size_t>(o) * static_cast<std::size_t>(matrix.inputs) +
                                          static_cast<std::size_t>(i)] *
                            x.value(matrix.type, r, i);
        sum += term;
        size += std::fabs(term);
      }
      const double tolerance = (matrix.inputs + 4) * kEpsilon * size;
      const float got = out[static_cast<std::size_t>(r) * stride + static_cast<std::size_t>(o)];
      ASSERT_LE(std::fabs(got - sum), tolerance) << "row " << r << " output " << o << ": " << got << " for " << sum;
    }
  }
}

std::string describe(DType type, int outputs, int inputs, int rows) {
  return std::string(dtype_traits(type).name) + " " + std::to_string(outputs) + "x" + std::to_string(inputs) +
         " rows " + std::to_string(rows);
}

class MatmulTest : public KernelTest {};
KVASIR_ON_EVERY_TABLE(MatmulTest);

TEST_P(MatmulTest, IsTheSumOfProductsAndWritesNothingElse) {
  Random random(1);
  for (const DType type : all_dtypes()) {
    for (const int in : input_counts(type)) {
      for (const int outputs : {1, 15, 16, 33, 130}) {
        const Matrix matrix = make_matrix(type, outputs, in, random);
        const auto stride = static_cast<std::size_t>(outputs) + 3;
        for (int rows = 1; rows <= 40; ++rows) {
          SCOPED_TRACE(describe(type, outputs, in, rows));
          const Rows x(table(), type, random.floats(static_cast<std::size_t>(rows * in)), in, 0, rows);
          Fenced<float> out(static_cast<std::size_t>(rows) * stride);
          table().matmul(matrix.view(), x.view(), 0, matrix.view().panels(), out.data(), stride);
          ASSERT_TRUE(out.intact());
          for (std::size_t i = 0; i < out.size(); ++i) {
            const bool outside = i % stride >= static_cast<std::size_t>(outputs);
            ASSERT_TRUE(!outside || out.untouched(i)) << i;
          }
          expect_product(matrix, x, rows, out.data(), stride);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST_P(MatmulTest, LongSumsStayWithinRounding) {
  Random random(2);
  for (const DType type : all_dtypes()) {
    const Matrix matrix = make_matrix(type, 20, 4352, random);
    for (const int rows : {9, 20, 40}) {
      const Rows x(table(), type, random.floats(static_cast<std::size_t>(rows) * 4352), 4352, 0, rows);
      expect_product(matrix, x, rows, multiply(table(), matrix, x).data(), 20);
    }
  }
}

TEST_P(MatmulTest, ZeroRowsOfActivationsGiveZero) {
  Random random(3);
  for (const DType type : all_dtypes()) {
    const int inputs = whole_blocks(type, 64);
    const Matrix matrix = make_matrix(type, 17, inputs, random);
    for (const int rows : {3, 19}) {
      const Rows x(table(), type, std::vector<float>(static_cast<std::size_t>(rows * inputs), 0.0F), inputs, 0, rows);
      for (const float y : multiply(table(), matrix, x)) EXPECT_EQ(y, 0.0F);
    }
  }
}

TEST_P(MatmulTest, ARowIsTheSameBitsWhateverRowsAreBeside) {
  constexpr int kRows = 512;
  Random random(4);
  for (const DType type : all_dtypes()) {
    const int inputs = whole_blocks(type, 96);
    for (const int outputs : {16, 150}) {
      const Matrix matrix = make_matrix(type, outputs, inputs, random);
      const std::vector<float> x = random.floats(static_cast<std::size_t>(kRows * inputs));
      const std::vector<float> all = multiply(table(), matrix, Rows(table(), type, x, inputs, 0, kRows));
      for (const int rows : {1, 2, 3, 4, 5, 7, 8, 9, 15, 17, 31, 64, 511}) {
        for (int repeat = 0; repeat < (rows == 1 ? 40 : 4); ++repeat) {
          const int first = random.below(kRows - rows + 1);
          const std::vector<float> some = multiply(table(), matrix, Rows(table(), type, x, inputs, first, rows));
          ASSERT_TRUE(same_bits(some.data(), all.data() + static_cast<std::ptrdiff_t>(first) * outputs, some.size()))
              << describe(type, outputs, inputs, rows) << " from " << first;
        }
      }
    }
  }
}

// Each number of rows is computed by tiles of its own; the inputs are more than one chunk of few rows.
TEST_P(MatmulTest, EveryNumberOfRowsGivesTheBitsOfEachRowAlone) {
  constexpr int kMostRows = 33;
  constexpr int kOutputs = 16 * 13 + 5;
  Random random(9);
  for (const DType type : all_dtypes()) {
    const int inputs = whole_blocks(type, 300);
    const Matrix matrix = make_matrix(type, kOutputs, inputs, random);
    const std::vector<float> x = random.floats(static_cast<std::size_t>(2 * kMostRows * inputs));
    std::vector<float> alone;
    for (int r = 0; r < 2 * kMostRows; ++r) {
      const std::vector<float> one = multiply(table(), matrix, Rows(table(), type, x, inputs, r, 1));
      alone.insert(alone.end(), one.begin(), one.end());
    }
    for (int rows = 1; rows <= kMostRows; ++rows) {
      const int first = random.below(kMostRows);
      const std::vector<float> together = multiply(table(), matrix, Rows(table(), type, x, inputs, first, rows));
      for (int r = 0; r < rows; ++r)
        ASSERT_TRUE(same_bits(together.data() + static_cast<std::ptrdiff_t>(r) * kOutputs,
                              alone.data() + static_cast<std::ptrdiff_t>(first + r) * kOutputs, kOutputs))
            << describe(type, kOutputs, inputs, rows) << ", row " << r;
    }
  }
}

// More rows, panels and inputs than any table keeps at once.
TEST_P(MatmulTest, ManyOfEverythingGivesTheBitsOfEachRowAlone) {
  constexpr int kRows = 530;
  constexpr int kOutputs = 16 * 20 + 5;
  Random random(12);
  for (const DType type : {DType::kF32, DType::kBF16, DType::kQ8_0, DType::kQ4_K}) {
    const int inputs = whole_blocks(type, 2600);
    const Matrix matrix = make_matrix(type, kOutputs, inputs, random);
    const std::vector<float> x = random.floats(static_cast<std::size_t>(kRows * inputs));
    const std::vector<float> all = multiply(table(), matrix, Rows(table(), type, x, inputs, 0, kRows));
    for (const int row : {0, 15, 16, 255, 256, 300, 511, 512, 529}) {
      const std::vector<float> one = multiply(table(), matrix, Rows(table(), type, x, inputs, row, 1));
      ASSERT_TRUE(same_bits(one.data(), all.data() + static_cast<std::ptrdiff_t>(row) * kOutputs, kOutputs))
          << describe(type, kOutputs, inputs, kRows) << ", row " << row;
    }
  }
}

TEST_P(MatmulTest, PanelsMayBeSplitAnyhow) {
  constexpr int kOutputs = 16 * 20 + 5;
  Random random(5);
  for (const DType type : all_dtypes()) {
    // AMX takes panels of Q8_0 together where they have 16 blocks.
    const int inputs = whole_blocks(type, type == DType::kQ8_0 ? 512 : 64);
    const Matrix matrix = make_matrix(type, kOutputs, inputs, random);
    const int panels = matrix.view().panels();
    for (const int rows : {1, 3, 4, 13, 32}) {
      const Rows x(table(), type, random.floats(static_cast<std::size_t>(rows * inputs)), inputs, 0, rows);
      const std::vector<float> all = multiply(table(), matrix, x);
      for (int repeat = 0; repeat < 10; ++repeat) {
        Fenced<float> out(all.size());
        for (int begin = 0; begin < panels;) {
          const int end = std::min(panels, begin + 1 + random.below(repeat + 2));
          table().matmul(matrix.view(), x.view(), begin, end, out.data(), kOutputs);
          for (std::size_t i = 0; i < out.size(); ++i) {
            const bool later = static_cast<int>(i % kOutputs) >= end * kPanel;
            ASSERT_TRUE(!later || out.untouched(i)) << begin << " " << end;
          }
          begin = end;
        }
        ASSERT_TRUE(same_bits(out.data(), all.data(), all.size())) << describe(type, kOutputs, inputs, rows);
      }
    }
  }
}

TEST_P(MatmulTest, AnEmptyRangeOfPanelsWritesNothing) {
  Random random(6);
  for (const DType type : all_dtypes()) {
    const int inputs = whole_blocks(type, 32);
    const Matrix matrix = make_matrix(type, 40, inputs, random);
    for (const int rows : {5, 40}) {
      const Rows x(table(), type, random.floats(static_cast<std::size_t>(rows * inputs)), inputs, 0, rows);
      Fenced<float> out(static_cast<std::size_t>(rows) * 40);
      table().matmul(matrix.view(), x.view(), 1, 1, out.data(), 40);
      for (std::size_t i = 0; i < out.size(); ++i) ASSERT_TRUE(out.untouched(i));
    }
  }
}

// Integer dot products are exact, and each part adds with fused multiply-adds in order: no table may differ.
TEST_P(MatmulTest, QuantizedIsTheSameBitsOnEveryTable) {
  Random random(7);
  for (const DType type : all_dtypes()) {
    if (!is_quantized(type)) continue;
    for (const int least : {32, 96, 13 * 32, 14 * 32, 15 * 32, 2048, 2304, 4352}) {
      const int inputs = whole_blocks(type, least);
      // AMX takes rows by 4, 8, 12 and 16, from 3, 14 or 17 on, and many otherwise than few from 33 on.
      for (const int rows : {1, 2, 3, 5, 11, 14, 16, 20, 37}) {
        const Matrix matrix = make_matrix(type, 45, inputs, random);
        const std::vector<float> x = random.floats(static_cast<std::size_t>(rows * inputs), 8.0F);
        const std::vector<float> here = multiply(table(), matrix, Rows(table(), type, x, inputs, 0, rows));
        const KernelTable& generic = generic_kernels();
        const std::vector<float> there = multiply(generic, matrix, Rows(generic, type, x, inputs, 0, rows));
        ASSERT_TRUE(same_bits(here.data(), there.data(), here.size())) << describe(type, 45, inputs, rows);
      }
    }
  }
}

// AMX takes 3 to 64 rows of Q8_0 where they lie, those of four panels in turns of 16 blocks from 5 rows to 32.
TEST_P(MatmulTest, RowsOfSeveralPanelsAreTheSameBitsOnEveryTable) {
  constexpr int kOutputs = 16 * 6 + 5;
  Random random(17);
  const KernelTable& generic = generic_kernels();
  for (const int blocks : {2, 4, 6, 8, 16, 32, 48, 49, 50}) {
    const int inputs = blocks * 32;
    const Matrix matrix = make_matrix(DType::kQ8_0, kOutputs, inputs, random);
    for (const int rows : {3, 4, 5, 8, 9, 12, 13, 16, 17, 32, 33, 64, 65}) {
      const std::vector<float> x = random.floats(static_cast<std::size_t>(rows * inputs), 8.0F);
      const std::vector<float> here = multiply(table(), matrix, Rows(table(), DType::kQ8_0, x, inputs, 0, rows));
      const std::vector<float> there = multiply(generic, matrix, Rows(generic, DType::kQ8_0, x, inputs, 0, rows));
      ASSERT_TRUE(same_bits(here.data(), there.data(), here.size())) << describe(DType::kQ8_0, kOutputs, inputs, rows);
    }
  }
}

// Intel's manual, TDPBF16PS: of 32 inputs, the even ones and the odd ones are chains of fused multiply-adds, which are
// added to the total; denormals are zero, before and after each step.
float flushed(float x) {
  return std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(0.0F, x) : x;
}

float tile_unit_sum(const std::vector<float>& weights, const std::vector<float>& x) {
  float total = 0;
  for (std::size_t begin = 0; begin < x.size(); begin += 32) {
    float chains[2] = {};
    for (std::size_t i = begin; i < std::min(x.size(), begin + 32); ++i) {
      const float rounded = flushed(bf16_to_f32(f32_to_bf16(flushed(x[i]))));
      chains[i % 2] = flushed(std::fma(rounded, flushed(weights[i]), chains[i % 2]));
    }
    total = flushed(total + flushed(chains[0] + chains[1]));
  }
  return total;
}

TEST_P(MatmulTest, Bf16OfTheTileUnitIsItsSums) {
  if (!table().rounds_bf16_rows) GTEST_SKIP() << "this table multiplies BF16 weights with floats";
  constexpr int kOutputs = 37;
  Random random(11);
  for (const int inputs : {1, 31, 32, 33, 95, 600}) {
    for (const bool tiny : {false, true}) {
      Matrix matrix = make_matrix(DType::kBF16, kOutputs, inputs, random);
      std::vector<float> x = random.floats(static_cast<std::size_t>(40 * inputs));
      // Products of these are denormal now and then, as are some of the values.
      if (tiny)
        for (float& value : x) value *= random.below(4) == 0 ? 1e-39F : 1e-37F;
      for (const int rows : {1, 2, 3, 4, 5, 6, 7, 8, 17, 40}) {
        const std::vector<float> got = multiply(table(), matrix, Rows(table(), DType::kBF16, x, inputs, 0, rows));
        for (int r = 0; r < rows; ++r)
          for (int o = 0; o < kOutputs; ++o) {
            const auto row = x.begin() + static_cast<std::ptrdiff_t>(r) * inputs;
            const auto weights = matrix.values.begin() + static_cast<std::ptrdiff_t>(o) * inputs;
            const float want = tile_unit_sum({weights, weights + inputs}, {row, row + inputs});
            const float found = got[static_cast<std::size_t>(r * kOutputs + o)];
            ASSERT_TRUE(same_bits(&found, &want, 1))
                << describe(DType::kBF16, kOutputs, inputs, rows) << ": " << found << " for " << want;
          }
      }
    }
  }
}

// 32 products of the largest magnitude: no step of the integer arithmetic may saturate.
TEST_P(MatmulTest, Q8ExtremesDoNotSaturate) {
  for (const int weight : {-128, 127}) {
    for (const float sign : {-1.0F, 1.0F}) {
      for (const int blocks : {1, 2, 16}) {
        const int inputs = blocks * 32;
        std::vector<std::byte> row;
        for (int b = 0; b < blocks; ++b) {
          const std::uint16_t one = f32_to_f16(1.0F);
          row.resize(row.size() + 34, static_cast<std::byte>(weight));
          std::memcpy(row.data() + b * 34, &one, 2);
        }
        Matrix matrix{DType::kQ8_0, 1, inputs, std::vector<double>(static_cast<std::size_t>(inputs), weight),
                      Fenced<std::byte>(kPanelPacking.bytes(DType::kQ8_0, 1, inputs), std::size_t{64})};
        kPanelPacking.pack(matrix.view(), row.data(), {}, 0, 1, matrix.packed.data());
        for (const int rows : {1, 3, 5, 17}) {
          const std::vector<float> x(static_cast<std::size_t>(rows * inputs), sign * 127.0F);
          for (const float y : multiply(table(), matrix, Rows(table(), DType::kQ8_0, x, inputs, 0, rows)))
            EXPECT_EQ(y, static_cast<float>(inputs * weight * 127) * sign);
        }
      }
    }
  }
}

// What is not finite must show in the result of its row, and in no other.
TEST_P(MatmulTest, NonFiniteActivationsStayVisible) {
  constexpr std::ptrdiff_t kOutputs = 20;
  Random random(8);
  for (const DType type : all_dtypes()) {
    const int inputs = whole_blocks(type, type == DType::kQ8_0 ? 512 : 64);
    const Matrix matrix = make_matrix(type, kOutputs, inputs, random);
    for (const int rows : {3, 5, 18}) {
      std::vector<float> x = random.floats(static_cast<std::size_t>(rows * inputs));
      const std::vector<float> before = multiply(table(), matrix, Rows(table(), type, x, inputs, 0, rows));
      for (const float bad : {std::nanf(""), INFINITY, -INFINITY}) {
        x[static_cast<std::size_t>(inputs + 40)] = bad;  // of row 1
        const std::vector<float> after = multiply(table(), matrix, Rows(table(), type, x, inputs, 0, rows));
        for (int r = 0; r < rows; ++r) {
          const bool same = same_bits(after.data() + r * kOutputs, before.data() + r * kOutputs, kOutputs);
          EXPECT_EQ(same, r != 1) << describe(type, kOutputs, inputs, rows) << ", row " << r;
        }
        for (std::size_t o = kOutputs; o < 2 * kOutputs; ++o)
          EXPECT_FALSE(std::isfinite(after[o])) << describe(type, kOutputs, inputs, rows);
      }
    }
  }
}

}  // namespace
}  // namespace kvasir::test
