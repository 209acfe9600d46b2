#include <cstring>

#include "base/check.h"
#include "kernels/kernels.h"

namespace kvasir {
namespace {

std::size_t element_bytes(DType type) {
  return dtype_traits(type).block_bytes;
}

float read_element(DType type, const std::byte* p) {
  if (type == DType::kF32) {
    float value;
    std::memcpy(&value, p, sizeof value);
    return value;
  }
  std::uint16_t bits;
  std::memcpy(&bits, p, sizeof bits);
  return type == DType::kF16 ? f16_to_f32(bits) : bf16_to_f32(bits);
}

void pack_q8_panel(int outputs, int inputs, const std::byte* rows, int panel, std::byte* out) {
  const int blocks = inputs / kQ8Block;
  const std::size_t row_bytes = static_cast<std::size_t>(blocks) * 34;
  for (int b = 0; b < blocks; ++b, out += kQ8PanelBlockBytes) {
    for (int o = 0; o < kPanel; ++o) {
      const int row = panel * kPanel + o;
      std::byte* weights = out + o * 4;
      std::byte* scale = out + 512 + o * 2;
      if (row >= outputs) {
        for (int j = 0; j < 8; ++j) std::memset(weights + j * 64, 0x80, 4);
        std::memset(scale, 0, 2);
        continue;
      }
      const std::byte* block = rows + static_cast<std::size_t>(row) * row_bytes + static_cast<std::size_t>(b) * 34;
      std::memcpy(scale, block, 2);
      for (int j = 0; j < 8; ++j) {
        std::uint32_t four;
        std::memcpy(&four, block + 2 + j * 4, 4);
        four ^= 0x80808080u;
        std::memcpy(weights + j * 64, &four, 4);
      }
    }
  }
}

template <class Word>
void pack_word_panel(int outputs, int inputs, const std::byte* rows, int panel, std::byte* out) {
  const auto stride = static_cast<std::size_t>(inputs);
  constexpr int kTile = 64;  // inputs at a time, so that both sides stay in cache
  for (int begin = 0; begin < inputs; begin += kTile) {
    const int end = begin + kTile < inputs ? begin + kTile : inputs;
    for (int o = 0; o < kPanel; ++o) {
      const int row = panel * kPanel + o;
      for (int i = begin; i < end; ++i) {
        Word word{};
        if (row < outputs)
          std::memcpy(&word,
                      rows + (static_cast<std::size_t>(row) * stride + static_cast<std::size_t>(i)) * sizeof word,
                      sizeof word);
        std::memcpy(out + (static_cast<std::size_t>(i) * kPanel + static_cast<std::size_t>(o)) * sizeof word, &word,
                    sizeof word);
      }
    }
  }
}

}  // namespace

std::size_t PackedMatrix::panel_bytes() const {
  return type == DType::kQ8_0 ? static_cast<std::size_t>(inputs / kQ8Block) * kQ8PanelBlockBytes
                              : static_cast<std::size_t>(inputs) * kPanel * element_bytes(type);
}

std::size_t packed_bytes(DType type, int outputs, int inputs) {
  const PackedMatrix shape{type, outputs, inputs, nullptr};
  return shape.panel_bytes() * static_cast<std::size_t>(shape.panels());
}

void pack_panels(DType type, int outputs, int inputs, const std::byte* rows, int panel_begin, int panel_end,
                 std::byte* out) {
  const std::size_t panel_bytes = PackedMatrix{type, outputs, inputs, nullptr}.panel_bytes();
  for (int panel = panel_begin; panel < panel_end; ++panel) {
    std::byte* place = out + static_cast<std::size_t>(panel) * panel_bytes;
    if (type == DType::kQ8_0) {
      KVASIR_CHECK(inputs % kQ8Block == 0);
      pack_q8_panel(outputs, inputs, rows, panel, place);
    } else if (type == DType::kF32) {
      pack_word_panel<std::uint32_t>(outputs, inputs, rows, panel, place);
    } else {
      pack_word_panel<std::uint16_t>(outputs, inputs, rows, panel, place);
    }
  }
}

void unpack_row(const PackedMatrix& matrix, int output, float* out) {
  const std::byte* panel = matrix.data + static_cast<std::size_t>(output / kPanel) * matrix.panel_bytes();
  const int lane = output % kPanel;
  if (matrix.type != DType::kQ8_0) {
    const std::size_t bytes = element_bytes(matrix.type);
    for (int i = 0; i < matrix.inputs; ++i)
      out[i] = read_element(matrix.type, panel + static_cast<std::size_t>(i * kPanel + lane) * bytes);
    return;
  }
  for (int b = 0; b < matrix.inputs / kQ8Block; ++b, panel += kQ8PanelBlockBytes) {
    std::uint16_t bits;
    std::memcpy(&bits, panel + 512 + lane * 2, 2);
    const float scale = f16_to_f32(bits);
    for (int i = 0; i < kQ8Block; ++i) {
      const int quant = std::to_integer<int>(panel[i / 4 * 64 + lane * 4 + i % 4]) - 128;
      out[b * kQ8Block + i] = scale * static_cast<float>(quant);
    }
  }
}

}  // namespace kvasir
