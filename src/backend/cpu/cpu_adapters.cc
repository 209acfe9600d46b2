#include "backend/cpu/cpu_adapters.h"

#include <algorithm>

#include "backend/cpu/pass_tables.h"
#include "base/check.h"
#include "tensor/read_block.h"

namespace kvasir {
namespace {

constexpr std::uint64_t kAlignOfMatrix = 64;
constexpr int kTilePanels = 4;  // of outputs that one thread adds to
constexpr int kTileRows = 16;

// The type in which a matrix is kept.
DType kept(DType type) {
  return type == DType::kF16 ? DType::kF16 : DType::kF32;
}

std::uint64_t matrix_bytes(const WeightPacking& packing, const WeightPart& part) {
  const std::uint64_t bytes = packing.bytes(kept(part.type), part.outputs, part.inputs);
  return (bytes + kAlignOfMatrix - 1) / kAlignOfMatrix * kAlignOfMatrix;
}

// Returns all rows of the file's matrix as floats.
std::vector<float> widened(const WeightPart& part) {
  const DTypeTraits& traits = dtype_traits(part.type);
  const std::size_t blocks = part.bytes.size() / traits.block_bytes;
  std::vector<float> values(blocks * traits.block_elements);
  for (std::size_t i = 0; i < blocks; ++i)
    read_block(part.type, part.bytes.data() + i * traits.block_bytes, values.data() + i * traits.block_elements);
  return values;
}

PackedMatrix pack(const WeightPacking& packing, const WeightPart& part, std::byte* to) {
  const PackedMatrix matrix{kept(part.type), part.outputs, part.inputs, to};
  std::vector<float> values;
  const std::byte* rows = part.bytes.data();
  if (matrix.type != part.type) {
    values = widened(part);
    rows = reinterpret_cast<const std::byte*>(values.data());
  }
  packing.pack(matrix, rows, part.order, 0, matrix.panels(), to);
  return matrix;
}

// Panels [first, ...) of a matrix, `panels` of them at most.
PackedMatrix part_of(const PackedMatrix& matrix, int first, int panels) {
  return {matrix.type, std::min(matrix.outputs - first * kPanel, panels * kPanel), matrix.inputs,
          matrix.data + static_cast<std::size_t>(first) * matrix.panel_bytes()};
}

int groups_of(int rows) {
  return (rows + kTileRows - 1) / kTileRows;
}

}  // namespace

std::uint64_t CpuAdapters::bytes_of(const WeightPacking& packing, std::span<const LowRankPart> parts) {
  std::uint64_t bytes = 0;
  for (const LowRankPart& part : parts) bytes += matrix_bytes(packing, part.a) + matrix_bytes(packing, part.b);
  return bytes;
}

void CpuAdapters::load(std::span<const LowRankPart> parts) {
  const WeightPacking& packing = *kernels_.packing;
  auto adapter = std::make_unique<Adapter>();
  std::byte* to = adapter->data.ensure(bytes_of(packing, parts));
  for (const LowRankPart& part : parts) {
    KVASIR_CHECK(part.a.outputs == part.b.inputs && part.a.outputs > 0);
    Pair pair;
    pair.factor = part.factor;
    pair.a = pack(packing, part.a, to);
    to += matrix_bytes(packing, part.a);
    pair.b = pack(packing, part.b, to);
    to += matrix_bytes(packing, part.b);
    KVASIR_CHECK(adapter->pairs.emplace(static_cast<std::uint32_t>(part.matrix), pair).second);
  }
  adapters_.push_back(std::move(adapter));
}

const std::vector<CpuAdapters::Rows>& CpuAdapters::rows_of(const Batch& batch) {
  rows_.clear();
  for (const BatchSequence& sequence : batch.sequences) {
    if (sequence.adapters.empty()) continue;
    if (!rows_.empty() && rows_.back().first + rows_.back().count == sequence.first_row &&
        std::ranges::equal(rows_.back().adapters, sequence.adapters)) {
      rows_.back().count += sequence.rows;
    } else {
      rows_.push_back({sequence.first_row, sequence.rows, sequence.adapters});
    }
  }
  return rows_;
}

void CpuAdapters::collect(const float* x, int inputs, std::span<const Product> products, std::span<const Rows> rows) {
  KVASIR_CHECK(products.size() <= kMostProducts);
  terms_.clear();
  sums_.clear();
  std::size_t floats = 0;
  for (const Product& p : products)
    for (const Rows& of : rows) {
      const std::size_t first = terms_.size();
      for (const AppliedAdapter& applied : of.adapters) {
        const Adapter& adapter = *adapters_[static_cast<std::size_t>(applied.number)];
        const auto found = adapter.pairs.find(static_cast<std::uint32_t>(p.matrix));
        if (found == adapter.pairs.end()) continue;
        KVASIR_CHECK(found->second.a.inputs == inputs && found->second.b.outputs == p.outputs);
        terms_.push_back(
            {&found->second, found->second.factor * applied.scale, x + product(of.first, inputs), nullptr, of.count});
        floats += product(of.count, found->second.a.outputs);
      }
      if (terms_.size() > first)
        sums_.push_back({first, terms_.size(), p.out + product(of.first, p.outputs), of.count, p.outputs});
    }
  float* low = low_.ensure(floats);
  for (Term& term : terms_) {
    term.low = low;
    low += product(term.rows, term.pair->a.outputs);
  }
}

// One panel of factor * A x, for the rows of a group.
void CpuAdapters::multiply_down(const Term& term, int inputs, int panel, int first_row) const {
  const PackedMatrix& a = term.pair->a;
  const PackedMatrix rows_of_a = part_of(a, panel, 1);
  const int rows = std::min(kTileRows, term.rows - first_row);
  const Activations activations{rows, inputs, term.x + product(first_row, inputs), {}};
  float* const out = term.low + product(first_row, a.outputs) + panel * kPanel;
  kernels_.matmul(rows_of_a, activations, 0, 1, out, static_cast<std::size_t>(a.outputs));
  for (int r = 0; r < rows; ++r)
    for (int i = 0; i < rows_of_a.outputs; ++i) out[product(r, a.outputs) + static_cast<std::size_t>(i)] *= term.factor;
}

// Adds B times the low rows of each term to a tile of the product.
void CpuAdapters::add_up(const Sum& sum, int tile, int first_row) const {
  constexpr int kStride = kTilePanels * kPanel;
  alignas(64) float added[kTileRows * kStride];
  const int rows = std::min(kTileRows, sum.rows - first_row);
  for (std::size_t t = sum.first; t < sum.end; ++t) {
    const Term& term = terms_[t];
    const PackedMatrix b = part_of(term.pair->b, tile * kTilePanels, kTilePanels);
    kernels_.matmul(b, {rows, b.inputs, term.low + product(first_row, b.inputs), {}}, 0, b.panels(), added, kStride);
    for (int r = 0; r < rows; ++r)
      kernels_.add(sum.out + product(first_row + r, sum.outputs) + tile * kStride, added + r * kStride, b.outputs);
  }
}

void CpuAdapters::add(const float* x, int inputs, std::span<const Product> products, std::span<const Rows> rows) {
  collect(x, inputs, products, rows);
  if (sums_.empty()) return;
  const auto run = [&](const auto& list, const auto& tiles_of, const auto& task) {
    int tasks = 0;
    for (const auto& each : list) tasks += tiles_of(each) * groups_of(each.rows);
    threads_.parallel_for(tasks, [&](int number) {
      for (const auto& each : list) {
        const int own = tiles_of(each) * groups_of(each.rows);
        if (number < own) return task(each, number % tiles_of(each), number / tiles_of(each) * kTileRows);
        number -= own;
      }
    });
  };
  run(
      terms_, [](const Term& term) { return term.pair->a.panels(); },
      [&](const Term& term, int panel, int row) { multiply_down(term, inputs, panel, row); });
  run(
      sums_, [](const Sum& sum) { return (sum.outputs + kTilePanels * kPanel - 1) / (kTilePanels * kPanel); },
      [&](const Sum& sum, int tile, int row) { add_up(sum, tile, row); });
}

std::uint64_t CpuAdapters::loaded_bytes() const {
  std::uint64_t bytes = 0;
  for (const auto& adapter : adapters_) bytes += adapter->data.bytes();
  return bytes;
}

std::uint64_t CpuAdapters::workspace_bytes(int ranks, int rows) {
  return product(rows, ranks) * kMostProducts * sizeof(float);
}

}  // namespace kvasir
