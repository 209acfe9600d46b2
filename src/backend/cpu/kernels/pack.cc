#include <cstring>

#include "backend/cpu/kernels/kernels.h"
#include "backend/cpu/kernels/quantized_layout.h"
#include "base/check.h"
#include "tensor/dequantize.h"

namespace kvasir {
namespace {

constexpr int kLargestBlockBytes = 210;

// Returns whether the fields cover all bytes of a block.
constexpr bool covers_block(const QuantizedLayout& layout) {
  const int bytes = layout.words() * 4;
  return bytes + layout.tail_bytes() == layout.block_bytes && layout.block_bytes <= kLargestBlockBytes;
}
static_assert([] {
  for (const QuantizedLayout& layout : kQuantizedLayouts)
    if (!covers_block(layout)) return false;
  return true;
}());

// How the bits of a word are rearranged.
enum class BitOrder {
  kFile,
  kGrouped,   // bit 4g + k to bit g of byte k
  kSevenths,  // as if the highest four bits stood behind every seventh bit, then kGrouped
};

BitOrder bit_order(DType type, int word) {
  switch (type) {
    case DType::kQ5_0:
    case DType::kQ5_1: return word == 0 ? BitOrder::kGrouped : BitOrder::kFile;
    case DType::kIQ2_S: return word >= 8 && word < 16 ? BitOrder::kGrouped : BitOrder::kFile;
    case DType::kIQ3_S: return word >= 18 && word < 26 ? BitOrder::kGrouped : BitOrder::kFile;
    case DType::kIQ2_XXS: return word % 2 != 0 ? BitOrder::kSevenths : BitOrder::kFile;
    case DType::kIQ3_XXS: return word >= 16 ? BitOrder::kSevenths : BitOrder::kFile;
    default: return BitOrder::kFile;
  }
}

// Where bit `bit` of a word of the file goes. REQUIRES: an order other than kFile.
int packed_bit(BitOrder order, int bit) {
  if (order == BitOrder::kSevenths) bit = bit < 28 ? bit / 7 * 8 + bit % 7 : (bit - 28) * 8 + 7;
  return bit % 4 * 8 + bit / 4;
}

// Convert word number `word` of a block from the file to its packed form, and back.
std::uint32_t packed_word(DType type, int word, std::uint32_t bits) {
  const BitOrder order = bit_order(type, word);
  if (order == BitOrder::kFile) return bits;
  std::uint32_t packed = 0;
  for (int i = 0; i < 32; ++i) packed |= (bits >> i & 1) << packed_bit(order, i);
  return packed;
}
std::uint32_t file_word(DType type, int word, std::uint32_t packed) {
  const BitOrder order = bit_order(type, word);
  if (order == BitOrder::kFile) return packed;
  std::uint32_t bits = 0;
  for (int i = 0; i < 32; ++i) bits |= (packed >> packed_bit(order, i) & 1) << i;
  return bits;
}

// A field behind the words: `bytes` of each output.
struct TailField {
  int offset = 0;         // in the file's block
  std::size_t first = 0;  // of output 0, from where the block's tail begins
  std::size_t bytes = 0;
};

// Calls on_word(word, offset in the file's block) and on_tail(TailField).
template <class OnWord, class OnTail>
void for_each_field(const QuantizedLayout& layout, const OnWord& on_word, const OnTail& on_tail) {
  int word = 0;
  for (const QuantizedLayout::WordField& field : layout.word_fields)
    for (int w = 0; w < field.words; ++w, ++word) on_word(word, field.offset + w * 4);
  for (std::size_t h = 0; h < layout.half_fields.size(); ++h)
    if (layout.half_fields[h] >= 0) on_tail(TailField{layout.half_fields[h], h * kPanel * 2, 2});
  if (layout.byte_field >= 0) on_tail(TailField{layout.byte_field, 0, 1});
}

void pack_block(const QuantizedLayout& layout, const std::byte* block, int lane, const QuantizedLayout::Place& place,
                std::byte* panel) {
  for_each_field(
      layout,
      [&](int word, int offset) {
        std::uint32_t bits;
        std::memcpy(&bits, block + offset, sizeof bits);
        bits = packed_word(layout.type, word, bits);
        std::memcpy(panel + place.words + (word * kPanel + lane) * 4, &bits, sizeof bits);
      },
      [&](const TailField& field) {
        std::memcpy(panel + place.tail + field.first + static_cast<std::size_t>(lane) * field.bytes,
                    block + field.offset, field.bytes);
      });
}

void unpack_block(const QuantizedLayout& layout, const std::byte* panel, const QuantizedLayout::Place& place, int lane,
                  std::byte* block) {
  for_each_field(
      layout,
      [&](int word, int offset) {
        std::uint32_t bits;
        std::memcpy(&bits, panel + place.words + (word * kPanel + lane) * 4, sizeof bits);
        bits = file_word(layout.type, word, bits);
        std::memcpy(block + offset, &bits, sizeof bits);
      },
      [&](const TailField& field) {
        std::memcpy(block + field.offset,
                    panel + place.tail + field.first + static_cast<std::size_t>(lane) * field.bytes, field.bytes);
      });
}

void pack_quantized_panel(const QuantizedLayout& layout, const PackedMatrix& shape, const std::byte* rows,
                          const RowOrder& order, int panel, std::byte* out) {
  static constexpr std::byte kZeros[kLargestBlockBytes] = {};
  const int blocks = shape.inputs / layout.inputs;
  const auto block_bytes = static_cast<std::size_t>(layout.block_bytes);
  const std::byte* from[kPanel];
  for (int o = 0; o < kPanel; ++o) {
    const int output = panel * kPanel + o;
    from[o] = output < shape.outputs
                  ? rows + static_cast<std::size_t>(order.row(output)) * static_cast<std::size_t>(blocks) * block_bytes
                  : nullptr;
  }
  for (int b = 0; b < blocks; ++b) {
    const QuantizedLayout::Place place = layout.place(b, blocks);
    for (int o = 0; o < kPanel; ++o) {
      pack_block(layout, from[o] != nullptr ? from[o] : kZeros, o, place, out);
      if (from[o] != nullptr) from[o] += block_bytes;
    }
  }
}

template <class Word>
void pack_word_panel(const PackedMatrix& shape, const std::byte* rows, const RowOrder& order, int panel,
                     std::byte* out) {
  const auto stride = static_cast<std::size_t>(shape.inputs);
  constexpr int kTile = 64;  // inputs at a time, so that both sides stay in cache
  for (int begin = 0; begin < shape.inputs; begin += kTile) {
    const int end = begin + kTile < shape.inputs ? begin + kTile : shape.inputs;
    for (int o = 0; o < kPanel; ++o) {
      const int output = panel * kPanel + o;
      const auto row = static_cast<std::size_t>(output < shape.outputs ? order.row(output) : 0);
      for (int i = begin; i < end; ++i) {
        Word word{};
        if (output < shape.outputs)
          std::memcpy(&word, rows + (row * stride + static_cast<std::size_t>(i)) * sizeof word, sizeof word);
        std::memcpy(out + (static_cast<std::size_t>(i) * kPanel + static_cast<std::size_t>(o)) * sizeof word, &word,
                    sizeof word);
      }
    }
  }
}

std::size_t packed_bytes(DType type, int outputs, int inputs) {
  const PackedMatrix shape{type, outputs, inputs, nullptr};
  return shape.panel_bytes() * static_cast<std::size_t>(shape.panels());
}

void pack_panels(const PackedMatrix& shape, const std::byte* rows, const RowOrder& order, int panel_begin,
                 int panel_end, std::byte* out) {
  const std::size_t panel_bytes = shape.panel_bytes();
  for (int panel = panel_begin; panel < panel_end; ++panel) {
    std::byte* place = out + static_cast<std::size_t>(panel) * panel_bytes;
    if (const QuantizedLayout* layout = quantized_layout(shape.type)) {
      KVASIR_CHECK(shape.inputs % layout->inputs == 0);
      pack_quantized_panel(*layout, shape, rows, order, panel, place);
    } else if (shape.type == DType::kF32) {
      pack_word_panel<std::uint32_t>(shape, rows, order, panel, place);
    } else {
      pack_word_panel<std::uint16_t>(shape, rows, order, panel, place);
    }
  }
}

void unpack_row(const PackedMatrix& matrix, int output, float* out) {
  const std::byte* panel = matrix.data + static_cast<std::size_t>(output / kPanel) * matrix.panel_bytes();
  const int lane = output % kPanel;
  const QuantizedLayout* layout = quantized_layout(matrix.type);
  if (layout == nullptr) {
    const std::size_t bytes = dtype_traits(matrix.type).block_bytes;
    for (int i = 0; i < matrix.inputs; ++i)
      out[i] = read_element(matrix.type, panel + static_cast<std::size_t>(i * kPanel + lane) * bytes);
    return;
  }
  std::byte block[kLargestBlockBytes];
  const int blocks = matrix.inputs / layout->inputs;
  for (int b = 0; b < blocks; ++b) {
    unpack_block(*layout, panel, layout->place(b, blocks), lane, block);
    dequantize_block(matrix.type, block, out + b * layout->inputs);
  }
}

}  // namespace

std::size_t PackedMatrix::panel_bytes() const {
  if (const QuantizedLayout* layout = quantized_layout(type))
    return static_cast<std::size_t>(inputs / layout->inputs) * layout->panel_block_bytes();
  return static_cast<std::size_t>(inputs) * kPanel * dtype_traits(type).block_bytes;
}

const WeightPacking kPanelPacking{"panels-16.2", packed_bytes, pack_panels, unpack_row};

}  // namespace kvasir
