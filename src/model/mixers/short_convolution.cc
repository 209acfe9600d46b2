#include "model/mixers/short_convolution.h"

#include <fmt/core.h>

#include <algorithm>

#include "base/check.h"

namespace kvasir {

ShortConvolution::ShortConvolution(int width, int taps) : width_(width), taps_(taps), inputs_{3 * width} {
  KVASIR_CHECK(taps >= 2 && taps <= kMostTaps);
}

std::string ShortConvolution::arithmetic_id() const {
  return fmt::format("short-convolution-1-{}-{}", width_, taps_);
}

std::size_t ShortConvolution::state_bytes() const {
  return static_cast<std::size_t>(width_) * static_cast<std::size_t>(taps_ - 1) * sizeof(float);
}

void ShortConvolution::advance(int /*step*/, int part, const Rows& rows, std::byte* state) const {
  const int before = taps_ - 1;
  auto* const past = reinterpret_cast<float*>(state);  // [width][taps - 1], oldest first
  for (int c = part * kPart; c < std::min(width_, (part + 1) * kPart); ++c) {
    const float* taps = rows.parameters[0] + c * taps_;
    float* const of_channel = past + c * before;
    for (int row = 0; row < rows.count; ++row) {
      const float* in = rows.inputs[0] + static_cast<std::ptrdiff_t>(row) * inputs_[0];
      const float u = in[c] * in[2 * width_ + c];
      float sum = 0;
      for (int i = 0; i < before; ++i) sum += taps[i] * of_channel[i];
      sum += taps[before] * u;
      for (int i = 1; i < before; ++i) of_channel[i - 1] = of_channel[i];
      of_channel[before - 1] = u;
      rows.output[static_cast<std::ptrdiff_t>(row) * width_ + c] = in[width_ + c] * sum;
    }
  }
}

}  // namespace kvasir
