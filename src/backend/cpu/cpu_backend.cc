#include "backend/cpu/cpu_backend.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <new>

#include "backend/cpu/cpu_backend_impl.h"
#include "base/check.h"
#include "base/status.h"

namespace kvasir {

std::unique_ptr<Backend> make_cpu_backend(const BackendShape& shape, const KernelTable* kernels, ThreadPool* threads) {
  return std::make_unique<CpuBackend>(shape, kernels, threads);
}

std::string CpuBackend::arithmetic_id(const PageFormat& format) const {
  // Raised with every change of the bits that a kernel table gives, or of the layout of encoded pages.
  constexpr int kVersion = 1;
  constexpr int kEncodedVersion = 2;
  constexpr int kSoftcapVersion = 1;
  std::string id = fmt::format("{}/{}/{}/{}", kernels_.arithmetic, format.encoded() ? kEncodedVersion : kVersion,
                               format.slots, kPartialEntries);
  if (std::ranges::any_of(shape_.layers, [](const LayerShape& layer) { return layer.softcap != 0; }))
    id += fmt::format("/softcap-{}", kSoftcapVersion);
  return id;
}

float* CpuBackend::ensure(Activation activation, int width) {
  Tensor& t = tensor(activation);
  t.width = width;
  return t.data.ensure(product(rows_, width));
}

Status CpuBackend::load_adapter(std::span<const LowRankPart> parts) {
  try {
    adapters_.load(parts);
  } catch (const std::bad_alloc&) {
    return exhausted("the system has no {} bytes for an adapter; close other programs or load fewer adapters",
                     adapter_bytes(parts));
  }
  return {};
}

void CpuBackend::begin(const Pass& pass) {
  pass_ = pass;
  rows_ = pass.batch->rows();
  adapted_ = adapters_.rows_of(*pass.batch);
  attention_.begin(pass);
}

void CpuBackend::embed(WeightId embedding, float scale, Activation to) {
  const PackedMatrix& matrix = weights_.matrix(embedding);
  const int width = matrix.inputs;
  float* x = ensure(to, width);
  threads_.parallel_for(rows_, [&](int row) {
    float* of_row = x + product(row, width);
    kernels_.packing->unpack_row(matrix, pass_.batch->tokens[static_cast<std::size_t>(row)], of_row);
    if (scale == 1) return;
    for (int i = 0; i < width; ++i) of_row[i] *= scale;
  });
}

void CpuBackend::add_positions(WeightId positions) {
  const int width = shape_.width;
  float* x = tensor(Activation::kResidual).data.data();
  const PackedMatrix& learned = weights_.matrix(positions);
  const Batch& batch = *pass_.batch;
  threads_.parallel_for(static_cast<int>(batch.sequences.size()), [&](int index) {
    const BatchSequence& sequence = batch.sequences[static_cast<std::size_t>(index)];
    const std::vector<Position>& places = batch.tables[sequence.first_table].key_positions;
    std::vector<float> row(static_cast<std::size_t>(width));
    for (int r = 0; r < sequence.rows; ++r) {
      const Position place = std::min<Position>(places[static_cast<std::size_t>(r)], learned.outputs - 1);
      kernels_.packing->unpack_row(learned, static_cast<int>(place), row.data());
      kernels_.add(x + product(sequence.first_row + r, width), row.data(), width);
    }
  });
}

void CpuBackend::normalize(const float* x, const OutputWeights& weights, int rows, float* out) {
  const int width = shape_.width;
  const float* weight = weights_.vector(weights.norm);
  const float* bias = weights_.vector(weights.norm_bias);
  threads_.parallel_for(rows, [&](int row) {
    const float* from = x + product(row, width);
    float* to = out + product(row, width);
    if (weights.layer_norm) {
      kernels_.layer_norm(from, weight, bias, width, weights.eps, to);
    } else {
      kernels_.rms_norm(from, weight, width, weights.eps, to);
    }
  });
}

void CpuBackend::rms_norm(Activation from, WeightId weight, float eps, Activation to) {
  normalize(tensor(from).data.data(), {.norm = weight, .eps = eps}, rows_, ensure(to, shape_.width));
}

void CpuBackend::layer_norm(Activation from, WeightId weight, WeightId bias, float eps, Activation to) {
  normalize(tensor(from).data.data(), {.norm = weight, .norm_bias = bias, .layer_norm = true, .eps = eps}, rows_,
            ensure(to, shape_.width));
}

void CpuBackend::rms_norm_heads(Activation x, WeightId weight, int heads, float eps) {
  const int dim = tensor(x).width / heads;
  const float* by = weights_.vector(weight);
  float* data = tensor(x).data.data();
  threads_.parallel_for(rows_, [&](int row) {
    for (int head = 0; head < heads; ++head) {
      float* at = data + product(row, heads * dim) + product(head, dim);
      kernels_.rms_norm(at, by, dim, eps, at);
    }
  });
}

// Quantises rows of x into the q8 buffers. The 16 rows of a group share cache lines, so one thread takes them all;
// where there are fewer groups than threads, each takes some of the blocks.
void CpuBackend::quantize(const float* x, int inputs, int rows) {
  constexpr int kLeastBlocks = 128;  // of a task: fewer are quantised faster than handed over
  if (rows == 0) return;
  const int blocks = inputs / kQ8Block;
  const int groups = (rows + kRowGroup - 1) / kRowGroup;
  const MutableQ8Rows all = quantized_.ensure(groups, inputs);
  const int wanted = (2 * threads_.threads() + groups - 1) / groups;  // two tasks per thread, for an even end
  const int parts = std::clamp(blocks * std::min(rows, kRowGroup) / kLeastBlocks, 1, std::min(wanted, blocks));
  threads_.parallel_for(groups * parts, [&](int task) {
    const int group = task / parts;
    const int begin = blocks * (task % parts) / parts;
    const int end = blocks * (task % parts + 1) / parts;
    const std::size_t place = group_places(group, inputs) + product(begin, kRowGroup);
    for (int row = group * kRowGroup; row < std::min(rows, (group + 1) * kRowGroup); ++row)
      kernels_.quantize_q8(x + product(row, inputs) + begin * kQ8Block, (end - begin) * kQ8Block,
                           all.at(place + static_cast<std::size_t>(row % kRowGroup)));
  });
}

// All jobs share the activations and run as one parallel region.
void CpuBackend::multiply_rows(const float* x, int inputs, int rows, std::span<const Job> jobs) {
  int panels = 0;
  bool quantized = false;
  for (const Job& job : jobs) {
    panels += job.weights->panels();
    quantized = quantized || is_quantized(job.weights->type);
  }
  if (quantized) quantize(x, inputs, rows);
  const Activations activations{rows, inputs, x, quantized_.view(0, inputs)};
  // Few rows: large shares of panels, several per thread so that a slow thread does not hold up the rest. Many rows: 4
  // panels or more, since each share reads all rows again, but several shares per thread.
  const int threads = threads_.threads();
  const int share = rows <= kRowGroup ? std::max(8, (panels / (threads * 12) + 7) / 8 * 8)
                                      : std::clamp(panels / (threads * 8) / 4 * 4, 4, 16);
  const auto multiply_share = [&](int task) {
    int begin = task * share;
    int end = std::min(panels, begin + share);
    for (const Job& job : jobs) {
      const int own = job.weights->panels();
      if (begin < own && begin < end)
        kernels_.matmul(*job.weights, activations, begin, std::min(end, own), job.out,
                        static_cast<std::size_t>(job.weights->outputs));
      begin = std::max(0, begin - own);
      end -= own;
      if (end <= 0) break;
    }
  };
  threads_.parallel_for((panels + share - 1) / share, multiply_share);
  for (const Job& job : jobs) {
    if (job.bias == nullptr) continue;
    const int outputs = job.weights->outputs;
    threads_.parallel_for(rows, [&](int row) { kernels_.add(job.out + product(row, outputs), job.bias, outputs); });
  }
}

void CpuBackend::multiply(Activation from, std::span<const Product> products) {
  std::vector<Job> jobs;
  for (const Product& p : products) {
    const PackedMatrix& matrix = weights_.matrix(p.matrix);
    KVASIR_CHECK(matrix.inputs == tensor(from).width);
    jobs.push_back({&matrix, weights_.vector(p.bias), ensure(p.to, matrix.outputs)});
  }
  const float* x = tensor(from).data.data();
  multiply_rows(x, tensor(from).width, rows_, jobs);
  if (adapted_.empty()) return;
  std::vector<CpuAdapters::Product> added;
  for (const Product& p : products)
    added.push_back({p.matrix, weights_.matrix(p.matrix).outputs, tensor(p.to).data.data()});
  adapters_.add(x, tensor(from).width, added, adapted_);
}

void CpuBackend::activate(ActivationFunction function, Activation gate, Activation up) {
  const int width = tensor(up).width;
  KVASIR_CHECK(width == tensor(gate).width);
  threads_.parallel_for(rows_, [&](int row) {
    float* hidden = tensor(up).data.data() + product(row, width);
    kernels_.activate(function, tensor(gate).data.data() + product(row, width), hidden, width, hidden);
  });
}

void CpuBackend::activate(ActivationFunction function, Activation x) {
  const int width = tensor(x).width;
  threads_.parallel_for(rows_, [&](int row) {
    float* hidden = tensor(x).data.data() + product(row, width);
    kernels_.activate(function, hidden, nullptr, width, hidden);
  });
}

void CpuBackend::add(Activation to, Activation x) {
  const int width = tensor(to).width;
  KVASIR_CHECK(width == tensor(x).width);
  threads_.parallel_for(rows_, [&](int row) {
    kernels_.add(tensor(to).data.data() + product(row, width), tensor(x).data.data() + product(row, width), width);
  });
}

void CpuBackend::copy(Activation from, Columns columns, Activation to) {
  const int stride = tensor(from).width;
  const int width = columns.count > 0 ? columns.count : stride;
  KVASIR_CHECK(columns.first >= 0 && columns.first + width <= stride);
  const float* x = tensor(from).data.data() + columns.first;
  float* out = ensure(to, width);
  threads_.parallel_for(rows_,
                        [&](int row) { std::copy_n(x + product(row, stride), width, out + product(row, width)); });
}

void CpuBackend::scale(Activation x, float factor, WeightId by) {
  const int width = tensor(x).width;
  if (by != kNoWeight) factor *= weights_.vector(by)[0];
  threads_.parallel_for(rows_, [&](int row) {
    float* of_row = tensor(x).data.data() + product(row, width);
    for (int i = 0; i < width; ++i) of_row[i] *= factor;
  });
}

void CpuBackend::scale_rows(Activation x, Activation gate, WeightId weights) {
  const int width = tensor(x).width;
  const int inputs = tensor(gate).width;
  const float* by = weights_.vector(weights);
  threads_.parallel_for(rows_, [&](int row) {
    const float* from = tensor(gate).data.data() + product(row, inputs);
    double sum = 0;
    for (int i = 0; i < inputs; ++i) sum += static_cast<double>(from[i]) * static_cast<double>(by[i]);
    const auto factor = static_cast<float>(1 / (1 + std::exp(-sum)));
    float* of_row = tensor(x).data.data() + product(row, width);
    for (int i = 0; i < width; ++i) of_row[i] *= factor;
  });
}

void CpuBackend::run_experts(const Experts& experts) {
  const Tensor& x = tensor(Activation::kNormalized);
  const float* router = tensor(Activation::kRouter).data.data();
  experts_.run(experts, {rows_, x.width, x.data.data(), router, ensure(Activation::kProjected, x.width)});
}

void CpuBackend::store(int layer) {
  attention_.store(layer, tensor(Activation::kKey).data.data(), tensor(Activation::kValue).data.data());
}

void CpuBackend::attend(int layer, const AttentionWeights& weights) {
  const float* query = tensor(Activation::kQuery).data.data();
  const LayerShape& shape = shape_.layers[static_cast<std::size_t>(layer)];
  attention_.attend(layer, query,
                    {weights_.vector(weights.sinks),
                     {weights_.vector(weights.query_scales[0]), weights_.vector(weights.query_scales[1])}},
                    ensure(Activation::kAttention, shape.heads * shape.head_dim));
}

void CpuBackend::mix(int layer, std::span<const WeightId> parameters) {
  const StateMixer& mixer = *shape_.layers[static_cast<std::size_t>(layer)].mixer;
  const std::span<const int> widths = mixer.inputs();
  std::vector<const float*> vectors;
  for (const WeightId parameter : parameters) vectors.push_back(weights_.vector(parameter));
  float* out = ensure(Activation::kAttention, mixer.output());
  const std::vector<BatchSequence>& sequences = pass_.batch->sequences;
  for (int step = 0; step < mixer.steps(); ++step) {
    const int parts = mixer.parts(step);
    threads_.parallel_for(static_cast<int>(sequences.size()) * parts, [&](int task) {
      const BatchSequence& sequence = sequences[static_cast<std::size_t>(task / parts)];
      StateMixer::Rows rows;
      rows.count = sequence.rows;
      for (std::size_t i = 0; i < widths.size(); ++i)
        rows.inputs[i] = tensor(kMixerInputs[i]).data.data() + product(sequence.first_row, widths[i]);
      rows.parameters = vectors;
      rows.output = out + product(sequence.first_row, mixer.output());
      std::byte* const state = sequence.states + sequence.layers[static_cast<std::size_t>(layer)].state;
      mixer.advance(step, task % parts, rows, state);
    });
  }
}

Backend::Outputs CpuBackend::outputs(const OutputWeights& weights) {
  const int width = shape_.width;
  float* x = tensor(Activation::kResidual).data.data();
  int kept = 0, hidden = 0;
  for (const BatchSequence& sequence : pass_.batch->sequences) {
    KVASIR_CHECK(sequence.logits <= sequence.rows && sequence.hidden <= sequence.rows);
    KVASIR_CHECK(sequence.logits == 0 || sequence.hidden == 0);
    kept += sequence.logits;
    hidden += sequence.hidden;
  }
  if (kept + hidden == 0) return {};
  // Rows whose logits are wanted come first, side by side, for one product.
  float* normalized = ensure(Activation::kNormalized, width);
  float* next = normalized + product(kept, width);
  for (const BatchSequence& sequence : pass_.batch->sequences) {
    if (sequence.hidden == 0) continue;
    const int first = sequence.first_row + sequence.rows - sequence.hidden;
    normalize(x + product(first, width), weights, sequence.hidden, next);
    next += product(sequence.hidden, width);
  }
  Outputs outputs;
  outputs.hidden = {normalized + product(kept, width), product(hidden, width)};
  if (kept == 0) return outputs;
  int row = 0;
  std::vector<CpuAdapters::Rows> adapted;
  for (const BatchSequence& sequence : pass_.batch->sequences) {
    const int end = sequence.first_row + sequence.rows;
    if (!sequence.adapters.empty() && sequence.logits > 0) adapted.push_back({row, sequence.logits, sequence.adapters});
    for (int r = end - sequence.logits; r < end; ++r, ++row)
      if (r != row) std::copy_n(x + product(r, width), width, x + product(row, width));
  }
  normalize(x, weights, kept, normalized);
  float* logits = logits_.ensure(product(kept, shape_.vocabulary));
  const Job job{&weights_.matrix(weights.matrix), nullptr, logits};
  multiply_rows(normalized, width, kept, {&job, 1});
  if (!adapted.empty()) {
    const CpuAdapters::Product added{weights.matrix, job.weights->outputs, logits};
    adapters_.add(normalized, width, {&added, 1}, adapted);
  }
  if (weights.scale != 1 || weights.softcap != 0)
    threads_.parallel_for(kept, [&](int r) {
      for (float& logit :
           std::span(logits + product(r, shape_.vocabulary), static_cast<std::size_t>(shape_.vocabulary))) {
        logit *= weights.scale;
        if (weights.softcap != 0) logit = weights.softcap * std::tanh(logit / weights.softcap);
      }
    });
  outputs.logits = {logits, product(kept, shape_.vocabulary)};
  return outputs;
}

std::uint64_t cpu_adapter_bytes(std::span<const LowRankPart> parts) {
  return CpuAdapters::bytes_of(*find_kernels("auto")->packing, parts);
}

std::uint64_t cpu_weight_bytes(std::span<const WeightPart> parts, const KernelTable& kernels) {
  return CpuWeights::bytes_of(*kernels.packing, parts);
}

}  // namespace kvasir
