// What the CPU backend's buffers come to, beside what its workspace plan says.
#include <gtest/gtest.h>

#include <mutex>

#include "backend/cpu/cpu_backend_impl.h"
#include "sequence/crowd.h"
#include "sequence/sequence_runner.h"
#include "support/families.h"
#include "support/shared_data.h"

namespace kvasir::test {
namespace {

// Reads everything, and notes how large the page tables of the passes were.
class LargestTable final : public EntrySelector {
 public:
  bool selects(int layer) const override {
    static_cast<void>(layer);
    return true;
  }
  void select(const LaneRow& row, std::span<SlotMask> read) override {
    const std::scoped_lock lock(mutex_);
    frames = std::max(frames, static_cast<int>(row.table->frames.size()));
    entries = std::max(entries, std::ssize(read));
  }
  int frames = 0;
  std::int64_t entries = 0;

 private:
  std::mutex mutex_;
};

class NoTap final : public kvasir::AttentionObserver {
 public:
  void observe(const ObservedAttention& attention) override { seen += attention.rows; }
  int seen = 0;
};

struct WorkspaceCase {
  std::string policy;
  int chunk = 0;  // rows of a pass
  int prompt = 0;
  bool raw = false;       // somebody listens to raw weights
  int observed_rows = 0;  // of a pass
  std::string codec = "f32";
  RandomModelSpec spec = family_cases().front().spec;
};

// Prefill in chunks, then decoding: never more than planned, and not less than half.
void expect_planned(const WorkspaceCase& of) {
  SCOPED_TRACE(of.policy);
  const TemporaryFile file(make_random_model(of.spec));
  const auto model = load(file.path(), {.threads = 2, .kv_type = of.codec, .page_slots = 16, .chunk = of.chunk});
  const auto& backend = static_cast<const CpuBackend&>(*model->backend);
  LargestTable largest;
  NoTap tap;
  SequenceRunner runner(model, *new_cache(model, std::uint64_t{1} << 30), std::move(*make_policy(of.policy)));
  runner.step().set_selector(&largest);
  if (of.raw) runner.listener().set_tap(&tap);
  run_text(runner, Text(of.prompt, 8, 1), of.chunk);
  const PolicyTraits traits = (*make_policy(of.policy))->traits();
  Backend::WorkspaceRequest request;
  request.rows = of.chunk;
  request.logits = of.chunk;  // run_text wants them all
  request.slots = 16;
  Backend::WorkspaceRequest::Tables& tables = request.tables.front();
  tables.frames = largest.frames;
  tables.all = model->kv_shape.tables(traits.scope);
  tables.of_layer = traits.scope == PolicyScope::kSequence ? 1 : tables.all / model->kv_shape.layers;
  tables.entries = largest.entries;
  tables.selected_rows = of.chunk;
  tables.gaps = traits.compacts;
  if (model->kv_shape.page.encoded()) tables.staged_page_bytes = model->kv_shape.page.open().bytes();
  tables.observed_rows = of.observed_rows;
  tables.reductions = static_cast<int>(reductions_of(runner.policy()).size());
  tables.weights = of.raw;
  const std::uint64_t allocated = backend.allocated_workspace();
  const std::uint64_t planned = backend.workspace_bytes(request);
  EXPECT_LE(allocated, planned);
  EXPECT_LE(planned, 2 * allocated);
}

TEST(Workspace, OfUnobservedPassesIsPlanned) {
  expect_planned({"full", 64, 400});
  expect_planned({"full", 256, 1500});
  expect_planned({"streaming:sinks=4,window=100", 64, 400});
  expect_planned({"full", 1, 300});
  expect_planned({"full", 256, 1500, false, 0, "q4"});
  expect_planned({"full", 256, 1500, false, 0, "k=q8,v=q2,recent=64"});
}

// The inputs and outputs of a layer with a state are the widest.
TEST(Workspace, OfLayersWithStatesIsPlanned) {
  WorkspaceCase of{"full", 64, 400};
  of.spec.architecture = "decay";
  of.spec.state_channels = {0, 500};
  expect_planned(of);
}

TEST(Workspace, OfExpertsIsPlanned) {
  for (const int chunk : {1, 64, 256}) {
    WorkspaceCase of{"full", chunk, 400};
    of.spec.architecture = "qwen3moe";
    of.spec.experts = 16;
    of.spec.ffn = 192;
    expect_planned(of);
    of.spec.dtype = "q8_0";
    expect_planned(of);
  }
}

TEST(Workspace, OfObservedPassesIsPlanned) {
  expect_planned({"h2o:budget=200,recent=100", 64, 600, false, 64});
  expect_planned({"h2o:budget=200,recent=100,pos=original,heads=independent", 64, 600, false, 64});
  expect_planned({"snapkv:budget=200,window=16", 64, 1200, false, 16});
  expect_planned({"snapkv:budget=200,window=32", 256, 2000, false, 32});
  expect_planned({"full", 64, 400, true, 64});
}

// A row's weights are many here: units must be cut by rows.
TEST(Workspace, OfManyObservedWeightsIsBounded) {
  expect_planned({"h2o:budget=6000,recent=3000", 512, 4096, false, 512});
}

// Latent attention, Mamba-2, layers that read the keys of others, embeddings for each layer, experts beside a network:
// one small model of each, in 16 bits and encoded.
TEST(Workspace, OfEveryKindOfLayerIsPlanned) {
  constexpr int kTokens = 200, kSlots = 16;
  for (const char* name :
       {"deepseek_v2", "deepseek_v3", "gemma4", "gemma4_experts", "granitehybrid_experts", "gpt_oss", "qwen35moe"})
    for (const char* codec : {"f32", "q8"})
      for (const int chunk : {1, 64}) {
        SCOPED_TRACE(fmt::format("{} {} {}", name, codec, chunk));
        const auto model = load(source_dir() + "/tests/reference/originals/" + name + ".gguf",
                                {.threads = 2, .kv_type = codec, .page_slots = kSlots, .chunk = chunk});
        ASSERT_NE(model, nullptr);
        const KvCacheShape& shape = model->kv_shape;
        static_cast<void>(all_logits(*new_runner(model, "full"), random_tokens(kTokens, 96, 1), chunk));
        Backend::WorkspaceRequest request;
        request.rows = request.logits = chunk;
        request.slots = kSlots;
        const auto of = [&](int layer, std::int64_t tokens, const PageFormat& page) {
          Backend::WorkspaceRequest::Tables tables;
          tables.layer = layer;
          tables.entries = tokens / kSlots + 2;
          if (page.encoded()) tables.staged_page_bytes = page.open().bytes();
          return tables;
        };
        request.tables = {of(model->config.first_governed_layer(), kTokens, shape.page)};
        for (std::size_t w = 0; w < shape.windows.size(); ++w)
          request.tables.push_back(of(shape.first_layer(static_cast<int>(w) + 1), shape.windows[w].window + chunk,
                                      shape.of(shape.windows[w]).page));
        const std::uint64_t allocated = static_cast<const CpuBackend&>(*model->backend).allocated_workspace();
        const std::uint64_t planned = model->backend->workspace_bytes(request);
        EXPECT_LE(allocated, planned);
        EXPECT_LE(planned, 3 * allocated);
      }
}

// Adapters of one batch, all applied: their bytes are exact, and what they add to the workspace is planned.
TEST(Workspace, OfAdaptersIsPlanned) {
  const std::string folder = source_dir() + "/tests/reference/";
  for (const int chunk : {1, 64}) {
    EngineOptions options{.lora = {{folder + "adapters/llama.gguf"}, {folder + "adapters/llama.gguf", 0.5F}},
                          .threads = 2,
                          .kv_type = "f32",
                          .page_slots = 16,
                          .chunk = chunk};
    const auto model = load(folder + "originals/llama.gguf", options);
    ASSERT_NE(model, nullptr);
    const auto& backend = static_cast<const CpuBackend&>(*model->backend);
    std::uint64_t bytes = 0;
    for (const Adapter& adapter : model->adapters) bytes += adapter.bytes;
    EXPECT_EQ(backend.allocated_adapters(), bytes);
    const auto runner = new_runner(model, "full");
    const std::vector<TokenId> tokens = random_tokens(200, 96, 1);
    static_cast<void>(all_logits(*runner, tokens, chunk));
    Backend::WorkspaceRequest request;
    request.rows = request.logits = chunk;
    request.slots = 16;
    Backend::WorkspaceRequest::Tables& tables = request.tables.front();
    tables.all = model->kv_shape.tables(PolicyScope::kSequence);
    tables.entries = 200 / 16 + 1;
    EXPECT_LE(backend.allocated_workspace(), backend.workspace_bytes(request));
    EXPECT_LE(backend.workspace_bytes(request), 2 * backend.allocated_workspace());
  }
}

}  // namespace
}  // namespace kvasir::test
