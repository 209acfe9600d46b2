#include "model/sampling_from_gguf.h"

#include <string>
#include <string_view>

namespace kvasir {
namespace {

template <class Number>
void read(const gguf::File& file, std::string_view name, double least, double most, Number& value) {
  const Result<double> found = file.get_float("general.sampling." + std::string(name));
  if (found.ok() && *found >= least && *found <= most) value = static_cast<Number>(*found);
}

}  // namespace

SamplingOptions sampling_from_gguf(const gguf::File& file) {
  SamplingOptions sampling;
  read(file, "temp", 0, 100, sampling.temperature);
  read(file, "top_k", 0, 1 << 30, sampling.top_k);
  read(file, "top_p", 1e-6, 1, sampling.top_p);
  read(file, "min_p", 0, 1, sampling.min_p);
  read(file, "penalty_repeat", 1e-3, 10, sampling.repetition_penalty);
  return sampling;
}

}  // namespace kvasir
