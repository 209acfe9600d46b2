// Any bytes are an error or a trace that can be read wholly, whose header says what it said when it is written anew.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/check.h"
#include "replay/trace.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace kvasir;
  const auto bytes = std::as_bytes(std::span(data, size));
  const auto header = parse_npy_header(bytes, "x");
  const auto trace = AttentionTrace::parse(bytes, "x");
  KVASIR_CHECK(header.ok() || !trace.ok());
  if (header.ok()) {
    KVASIR_CHECK(header->data_offset <= size);
    if (header->shape.size() < 1000) {  // what fits the header of version 1
      const std::string again = npy_header(header->shape);
      const auto parsed = parse_npy_header(std::as_bytes(std::span(again)), "x");
      KVASIR_CHECK(parsed.ok() && parsed->shape == header->shape && parsed->data_bytes == header->data_bytes &&
                   parsed->data_offset == again.size());
    }
  }
  if (!trace.ok()) {
    KVASIR_CHECK(!trace.status().message().empty());
    return 0;
  }
  const Status sound = trace->check({});
  std::vector<float> weights(static_cast<std::size_t>(trace->tokens()));
  double sum = 0;
  for (std::int64_t layer = 0; layer < trace->layers(); ++layer)
    for (std::int64_t head = 0; head < trace->heads(); ++head)
      for (std::int64_t row = 0; row < trace->tokens(); ++row) {
        trace->read(layer, head, row, weights);
        for (const float weight : weights) sum += weight;
      }
  const auto rows = static_cast<double>(trace->layers() * trace->heads() * trace->tokens());
  if (sound.ok()) KVASIR_CHECK(sum > 0.98 * rows && sum < 1.02 * rows);
  return 0;
}
