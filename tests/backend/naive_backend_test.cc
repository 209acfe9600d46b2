// The CPU backend beside a second one that shares no arithmetic and no layout with it: whatever runs above backends
// runs on both, with the same logits to rounding, the same attention and the same tokens kept.
#include "backend/naive_backend.h"

#include <cmath>
#include <random>
#include <tuple>

#include "backend/cpu/cpu_backend.h"
#include "backend/jury.h"
#include "backend/naive_model.h"
#include "backend/page_doubles.h"
#include "sequence/crowd.h"
#include "session/through_a_file.h"
#include "support/families.h"

namespace kvasir::test {
namespace {

constexpr double kLogitTolerance = 1e-4;
constexpr double kMassTolerance = 2e-6;
constexpr double kJuryDistance = 1e-5;

const EngineOptions kOptions{.threads = 2, .kv_type = "f32", .page_slots = 16};

double largest_difference(std::span<const float> a, std::span<const float> b) {
  EXPECT_EQ(a.size(), b.size());
  if (a.size() != b.size()) return std::numeric_limits<double>::infinity();
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double difference = std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
    if (!(difference <= largest)) largest = difference;
  }
  return largest;
}

double largest_difference(std::span<const double> a, std::span<const double> b) {
  EXPECT_EQ(a.size(), b.size());
  if (a.size() != b.size()) return std::numeric_limits<double>::infinity();
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    if (!(std::abs(a[i] - b[i]) <= largest)) largest = std::abs(a[i] - b[i]);
  return largest;
}

// All raw weights that a sequence's passes had, and how many each query head had.
class RecordedWeights final : public kvasir::AttentionObserver {
 public:
  void observe(const ObservedAttention& attention) override {
    for (int row = 0; row < attention.rows; ++row)
      for (int head = 0; head < attention.heads; ++head) {
        const std::span<const float> of_head = attention.of(row, head);
        double sum = 0;
        for (const float weight : of_head) sum += static_cast<double>(weight);
        if (!(std::abs(sum - 1) < 1e-5)) ++not_one;
        counts.push_back(of_head.size());
        all.insert(all.end(), of_head.begin(), of_head.end());
        zeros += std::ranges::count(of_head, 0.0F);
      }
  }
  std::vector<float> all;
  std::vector<std::size_t> counts;
  std::ptrdiff_t zeros = 0;
  int not_one = 0;  // heads whose weights do not sum to 1
};

struct Seen {
  std::vector<float> logits;
  std::vector<std::vector<TokenIndex>> kept;
  Verdicts verdicts;
  RecordedWeights weights;
};

// Reads a text under a policy with a jury.
void run_on(const std::shared_ptr<LoadedModel>& model, const std::string& policy, const Text& text, Seen* seen,
            EntrySelector* selector = nullptr, bool tap = false) {
  SequenceRunner runner(model, *new_cache(model, std::uint64_t{1} << 28),
                        std::make_unique<Jury>(std::move(*make_policy(policy)), kJuryDistance, &seen->verdicts));
  runner.step().set_selector(selector);
  if (tap) runner.listener().set_tap(&seen->weights);
  seen->logits = run_text(runner, text, 40);
  seen->kept = kept_by(runner.sequence());
}

// A text without near ties: six copies of the policy, each told all masses 1e-5 higher or lower at random, decide the
// same throughout on the naive backend. Where a decision is closer than that, rounding may change what is kept.
Text text_without_ties(const std::shared_ptr<LoadedModel>& naive, const std::string& policy, int prompt, int generated,
                       SomeEntries::Choice choice = SomeEntries::Choice::kAll) {
  for (std::uint64_t seed = 1; seed <= 300; ++seed) {
    const Text text(prompt, generated, seed);
    Seen seen;
    SomeEntries entries(choice);
    run_on(naive, policy, text, &seen, &entries);
    if (seen.verdicts.disagreements == 0) return text;
  }
  ADD_FAILURE() << "every text has near ties";
  return {prompt, generated, 1};
}

const std::vector<std::string>& compared_policies() {
  static const std::vector<std::string> policies = {
      "full",
      "window:size=40",
      "streaming:sinks=4,window=60",
      "streaming:sinks=20,window=40,every=5,slack=3,max_drop=4",
      "streaming:sinks=4,window=60,every=16,realign=rotate",
      "h2o:budget=48,recent=16,every=8",
      "h2o:budget=40,recent=10,pos=original,heads=independent",
      "tova:budget=40,every=16",
      "tova:budget=90,every=30,pos=compact,heads=independent",
      "cascade:size=32,n=4,sinks=4",
      "cascade:size=48,n=2,sinks=20,heads=independent",
      "snapkv:budget=40,window=8",
      "snapkv:budget=40,window=8+streaming:sinks=2,window=20",
      "lethe:tau=2,start=24,sinks=2",
      "lethe:tau=1.2,start=16,sinks=2,recent=0.1,heads=independent",
  };
  return policies;
}

class NaiveBackendFamilies : public ::testing::TestWithParam<FamilyCase> {};

// Kept tokens are compared where no decision is a near tie, and masses differ by less than a fifth of that distance.
TEST_P(NaiveBackendFamilies, LogitsMassesAndKeptTokensAreTheCpus) {
  const TemporaryFile file(make_random_model(GetParam().spec));
  const auto naive = load_naive(file.path(), kOptions);
  const auto cpu = load(file.path(), kOptions);
  double logits = 0, masses = 0;
  for (const std::string& policy : compared_policies()) {
    SCOPED_TRACE(policy);
    const Text text = text_without_ties(naive, policy, 130, 40);
    Seen on_naive, on_cpu;
    run_on(naive, policy, text, &on_naive);
    run_on(cpu, policy, text, &on_cpu);
    EXPECT_EQ(on_cpu.kept, on_naive.kept);
    EXPECT_EQ(on_cpu.verdicts.decisions, on_naive.verdicts.decisions);
    EXPECT_EQ(on_naive.verdicts.decisions > 0, policy != "full");
    EXPECT_EQ(on_naive.verdicts.masses.front().empty(), (*make_policy(policy))->as<ObservesMasses>() == nullptr);
    logits = std::max(logits, largest_difference(on_cpu.logits, on_naive.logits));
    ASSERT_EQ(on_cpu.verdicts.masses.size(), on_naive.verdicts.masses.size());
    for (std::size_t t = 0; t < on_cpu.verdicts.masses.size(); ++t)
      masses = std::max(masses, largest_difference(on_cpu.verdicts.masses[t], on_naive.verdicts.masses[t]));
  }
  EXPECT_LT(logits, kLogitTolerance);
  EXPECT_LT(masses, kMassTolerance);
}

// 512 tokens, so that attention is summed over several partials of a lane.
TEST(NaiveBackend, LongTextsAreTheCpus) {
  RandomModelSpec spec = small_spec();
  spec.context = 512;
  const TemporaryFile file(make_random_model(spec));
  const auto naive = load_naive(file.path(), kOptions);
  const auto cpu = load(file.path(), kOptions);
  const Text text(480, 32, 3);
  for (const std::string policy : {"full", "window:size=300", "streaming:sinks=4,window=300",
                                   "streaming:sinks=4,window=300,every=32,realign=rotate"}) {
    SCOPED_TRACE(policy);
    Seen on_naive, on_cpu;
    run_on(naive, policy, text, &on_naive);
    run_on(cpu, policy, text, &on_cpu);
    EXPECT_LT(largest_difference(on_cpu.logits, on_naive.logits), kLogitTolerance);
    EXPECT_EQ(on_cpu.kept, on_naive.kept);
  }
}

// The raw weights too: as many as tokens are retained, zero on those that a sliding window hides.
TEST_P(NaiveBackendFamilies, RawWeightsAreTheCpus) {
  const TemporaryFile file(make_random_model(GetParam().spec));
  const auto naive = load_naive(file.path(), kOptions);
  const auto cpu = load(file.path(), kOptions);
  for (const std::string policy : {"full", "streaming:sinks=4,window=60", "snapkv:budget=40,window=8"}) {
    SCOPED_TRACE(policy);
    Seen on_naive, on_cpu;
    const Text text = text_without_ties(naive, policy, 90, 20);
    run_on(naive, policy, text, &on_naive, nullptr, true);
    run_on(cpu, policy, text, &on_cpu, nullptr, true);
    ASSERT_EQ(on_cpu.weights.counts, on_naive.weights.counts);
    ASSERT_EQ(on_naive.weights.counts.size(), static_cast<std::size_t>(110 * 4 * naive->config.governed_layers()));
    EXPECT_LT(largest_difference(on_cpu.weights.all, on_naive.weights.all), kMassTolerance);
    // A sink's share is no token's.
    const bool sinks = GetParam().spec.architecture == "gpt-oss";
    EXPECT_EQ(on_naive.weights.not_one > 0, sinks);
    EXPECT_EQ(on_cpu.weights.not_one > 0, sinks);
    if (naive->config.governed().window > 0) {
      EXPECT_GT(on_naive.weights.zeros, 100);
      EXPECT_EQ(on_cpu.weights.zeros, on_naive.weights.zeros);
    }
  }
}

// Entries that a selector leaves unread have no live slots, but their tokens are observed, with weight zero.
TEST_P(NaiveBackendFamilies, UnreadEntriesAreTheCpus) {
  const TemporaryFile file(make_random_model(GetParam().spec));
  const auto naive = load_naive(file.path(), kOptions);
  const auto cpu = load(file.path(), kOptions);
  using Choice = SomeEntries::Choice;
  for (const std::string policy :
       {"full", "streaming:sinks=4,window=60", "streaming:sinks=20,window=40,every=5,slack=3,max_drop=4",
        "snapkv:budget=60,window=8"})
    for (const Choice choice : {Choice::kSome, Choice::kNone}) {
      SCOPED_TRACE(policy);
      Seen on_naive, on_cpu, whole;
      const Text text = text_without_ties(naive, policy, 110, 20, choice);
      SomeEntries for_naive(choice), for_cpu(choice);
      run_on(naive, policy, text, &on_naive, &for_naive, true);
      run_on(cpu, policy, text, &on_cpu, &for_cpu, true);
      run_on(cpu, policy, text, &whole);
      EXPECT_GT(largest_difference(on_cpu.logits, whole.logits), 0.01);
      EXPECT_GT(for_cpu.unread, 20);
      EXPECT_EQ(for_cpu.unread, for_naive.unread);
      EXPECT_EQ(for_cpu.read, for_naive.read);
      EXPECT_LT(largest_difference(on_cpu.logits, on_naive.logits), kLogitTolerance);
      ASSERT_EQ(on_cpu.weights.counts, on_naive.weights.counts);
      EXPECT_LT(largest_difference(on_cpu.weights.all, on_naive.weights.all), kMassTolerance);
      if (choice == Choice::kSome) {
        EXPECT_GT(for_cpu.read, for_cpu.unread);
        EXPECT_GT(on_cpu.weights.zeros, 1000);
      } else {
        EXPECT_EQ(on_cpu.weights.zeros, static_cast<std::ptrdiff_t>(on_cpu.weights.all.size()));
      }
    }
}

// Attention that is not so sharp that most masses are next to nothing, and so near ties.
RandomModelSpec even_spec() {
  RandomModelSpec spec = small_spec();
  spec.weight_std = 0.15F;
  return spec;
}

// Norms of projected values are the naive backend's to rounding. Their bits depend neither on the other values that are
// asked for, nor on threads.
TEST_P(NaiveBackendFamilies, ProjectedNormsAreTheCpus) {
  const TemporaryFile file(make_random_model(GetParam().spec));
  EngineOptions alone = kOptions;
  alone.threads = 1;
  const auto naive = load_naive(file.path(), kOptions), model = load(file.path(), kOptions),
             one = load(file.path(), alone);
  std::mt19937 random(3);
  std::uniform_real_distribution<float> uniform(-1, 1);
  constexpr std::size_t kValues = 37;
  for (std::size_t layer = 0; layer < model->config.layers.size(); ++layer) {
    const AttentionSpec& spec = model->config.layers[layer].attention;
    if (spec.heads == 0 || spec.latent) continue;
    const auto dim = static_cast<std::size_t>(spec.head_dim);
    std::vector<float> values(kValues * dim);
    for (float& value : values) value = uniform(random);
    for (int head = 0; head < spec.kv_heads; ++head) {
      std::vector<double> expected(kValues), norms(kValues), of_one(kValues), some(5);
      const auto find = [&](const LoadedModel& of, std::span<const float> from, std::span<double> to) {
        of.transformer->projected_norms(static_cast<int>(layer), head, from, to);
      };
      find(*naive, values, expected);
      find(*model, values, norms);
      find(*one, values, of_one);
      find(*model, std::span(values).subspan(31 * dim, 5 * dim), some);
      EXPECT_EQ(norms, of_one);
      EXPECT_TRUE(std::equal(some.begin(), some.end(), norms.begin() + 31));
      for (std::size_t i = 0; i < kValues; ++i) {
        EXPECT_GT(expected[i], 0) << layer;
        EXPECT_NEAR(norms[i], expected[i], 1e-5 * expected[i]) << layer << " " << head;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, NaiveBackendFamilies, ::testing::ValuesIn(family_cases(even_spec())),
                         [](const auto& family) { return family.param.name; });

// The naive backend itself against the oracle, in every type of weights: also where the CPU's products are coarser
// because it quantises activations.
TEST(NaiveBackend, IsTheReferenceModel) {
  for (const std::string type : {"f32", "f16", "bf16", "q4_0", "q8_0", "q5_1", "iq4_nl"})
    for (const std::string architecture : {"llama", "qwen2", "gptneox"}) {
      SCOPED_TRACE(type + " " + architecture);
      RandomModelSpec spec;
      spec.architecture = architecture;
      spec.dtype = type;
      if (architecture == "gptneox") spec.kv_heads = spec.heads, spec.rotary = spec.head_dim / 4;
      const TemporaryFile file(make_random_model(spec));
      const auto model = load_naive(file.path(), kOptions);
      const auto tokens = random_tokens(60, spec.vocab, 3);
      const auto runner = new_runner(model, "full");
      const auto opened = gguf::File::open(file.path());
      ASSERT_TRUE(opened.ok());
      const std::vector<int> ids(tokens.begin(), tokens.end());
      const std::vector<double> want = flatten(ReferenceModel(*opened).logits(ids));
      EXPECT_LT(rms_error_ratio(all_logits(*runner, tokens, 16), want), 2e-7);  // floats of pages and logits
    }
}

// Crowds of sequences under all policies: several in a pass, chunks in several passes, forks, sequences given up.
TEST(NaiveBackend, ACrowdHasTheBitsOfEachAlone) {
  for (const std::string type : {"f32", "f16"}) {
    const TemporaryFile file(make_random_model(crowd_spec()));
    const auto model = load_naive(file.path(), {.kv_type = type, .page_slots = 16});
    Crowd world(model, all_policies_in_use(), 11);
    world.run(5, 120);
    if (HasFatalFailure()) return;
    EXPECT_GT(world.events.crowded, 50);
    EXPECT_GT(world.events.mixed, 20);
    EXPECT_GT(world.events.split, 10);
    EXPECT_GT(world.events.forks, 0);
    EXPECT_GT(world.events.cancelled, 0);
  }
}

// Chunks in passes of a few rows, under every policy.
TEST(NaiveBackend, SplitChunksChangeNoBits) {
  const TemporaryFile file(make_random_model(crowd_spec()));
  const auto model = load_naive(file.path(), kOptions);
  const Text text(120, 30, 5);
  for (const std::string& policy : all_policies_in_use()) {
    SCOPED_TRACE(policy);
    const auto whole = new_runner(model, policy);
    const auto split = new_runner(model, policy);
    split->set_most_rows(7);
    EXPECT_TRUE(same_bits(run_text(*split, text, 40), run_text(*whole, text, 40)));
    EXPECT_EQ(kept_by(split->sequence()), kept_by(whole->sequence()));
  }
}

double rms(std::span<const float> a, std::span<const float> b) {
  double squares = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    squares += std::pow(static_cast<double>(a[i]) - static_cast<double>(b[i]), 2);
  return std::sqrt(squares / static_cast<double>(a.size()));
}

// Encoded pages, by the definitions of the codecs: what a codec does to the logits is the same to a small part of it.
// Where an element lies between two codes, rounding decides, so the bits are not the same. The policies drop tokens
// whatever attention says.
TEST(NaiveBackend, EncodedPagesAreTheCpus) {
  RandomModelSpec spec = even_spec();
  spec.context = 256;
  const TemporaryFile file(make_random_model(spec));
  const Text text(150, 60, 3);
  for (const std::string codec : {"i16", "q8", "q4", "q4o", "q3", "q2", "k=q8,v=q4,recent=20", "k=f16,v=q3",
                                  "q4,rotate=off", "q8,rotate=k,recent=7", "q2,rotate=v"})
    for (const std::string policy : {"full", "streaming:sinks=4,window=60",
                                     "streaming:sinks=4,window=60,every=16,realign=rotate", "random:budget=60"}) {
      SCOPED_TRACE(codec + " " + policy);
      const EngineOptions options{.threads = 2, .kv_type = codec, .page_slots = 16};
      Seen on_naive, on_cpu, plain;
      run_on(load_naive(file.path(), options), policy, text, &on_naive);
      run_on(load(file.path(), options), policy, text, &on_cpu);
      run_on(load(file.path(), kOptions), policy, text, &plain);
      EXPECT_EQ(on_cpu.kept, on_naive.kept);
      const double effect = rms(on_cpu.logits, plain.logits);
      EXPECT_GT(effect, 1e-5);
      // What is rotated is encoded again, at each prune.
      double most = policy.find("rotate") != std::string::npos ? 0.6 : 0.25;
      // Attention rounds queries and weights to as many bits as i16 has.
      if (codec == "i16") most = 1.2;
      EXPECT_LT(rms(on_cpu.logits, on_naive.logits), most * effect);
    }
}

// Scaled embeddings and every activation function, gated and not, whether a family has them or not.
TEST(NaiveBackend, FeedForwardNetworksOfEveryKindAreTheCpus) {
  BackendShape shape;
  shape.width = 48;
  constexpr int kHidden = 80;
  shape.vocabulary = 7;
  std::mt19937 random(5);
  std::uniform_real_distribution<float> uniform(-1, 1);
  std::vector<std::vector<float>> floats;
  std::vector<WeightPart> parts;
  const auto add = [&](int outputs, int inputs, bool is_vector) {
    std::vector<float>& of_part = floats.emplace_back(static_cast<std::size_t>(outputs * inputs));
    for (float& x : of_part) x = uniform(random);
    parts.push_back({DType::kF32, outputs, inputs, is_vector, {}, std::as_bytes(std::span(of_part))});
    return static_cast<WeightId>(parts.size() - 1);
  };
  const WeightId embedding = add(shape.vocabulary, shape.width, false);
  const WeightId gate = add(kHidden, shape.width, false);
  const WeightId up = add(kHidden, shape.width, false);
  const WeightId down = add(shape.width, kHidden, false);
  const WeightId norm = add(shape.width, 1, true);
  Batch batch;
  batch.tokens = {3, 1, 6, 0, 3};
  // Hidden states of the first and the last sequence, logits of the middle one.
  batch.sequences.resize(3);
  for (const auto& [sequence, first, rows] : {std::tuple{0, 0, 2}, {1, 2, 2}, {2, 4, 1}}) {
    BatchSequence& part = batch.sequences[static_cast<std::size_t>(sequence)];
    part.first_row = first;
    part.rows = rows;
    part.tables = 0;
    (sequence == 1 ? part.logits : part.hidden) = rows;
  }
  const auto run = [&](Backend& backend, ActivationFunction function, bool gated, float scale) {
    backend.begin({&batch});
    backend.embed(embedding, scale, Activation::kResidual);
    const Backend::Product both[] = {{up, kNoWeight, Activation::kUp}, {gate, kNoWeight, Activation::kGate}};
    backend.multiply(Activation::kResidual, std::span(both).first(gated ? 2 : 1));
    if (gated) {
      backend.activate(function, Activation::kGate, Activation::kUp);
    } else {
      backend.activate(function, Activation::kUp);
    }
    const Backend::Product back{down, kNoWeight, Activation::kProjected};
    backend.multiply(Activation::kUp, {&back, 1});
    backend.add(Activation::kResidual, Activation::kProjected);
    const Backend::Outputs outputs = backend.outputs({.matrix = embedding, .norm = norm, .eps = 1e-5F});
    EXPECT_EQ(outputs.logits.size(), 2u * 7);
    EXPECT_EQ(outputs.hidden.size(), 3u * 48);
    std::vector<float> all(outputs.logits.begin(), outputs.logits.end());
    all.insert(all.end(), outputs.hidden.begin(), outputs.hidden.end());
    return all;
  };
  NaiveBackend naive(shape);
  ASSERT_TRUE(naive.load(parts, {}).ok());
  ThreadPool threads(2);
  for (const std::string_view isa : kernel_names()) {
    const auto cpu = make_cpu_backend(shape, find_kernels(isa), &threads);
    ASSERT_TRUE(cpu->load(parts, {}).ok());
    std::vector<std::vector<float>> seen;
    for (const auto function : {ActivationFunction::kSilu, ActivationFunction::kGelu, ActivationFunction::kGeluTanh})
      for (const bool gated : {true, false})
        for (const float scale : {1.0F, 0.37F}) {
          const std::vector<float> wanted = run(naive, function, gated, scale);
          const std::vector<float> logits = run(*cpu, function, gated, scale);
          EXPECT_LT(largest_difference(logits, wanted), kLogitTolerance);
          // The two forms of GELU are alike to about 1e-3; all else differs more.
          for (const std::vector<float>& other : seen) EXPECT_GT(largest_difference(wanted, other), 1e-4);
          seen.push_back(wanted);
        }
  }
}

// A session's file holds pages in the store's own layout.
TEST(NaiveBackend, ASessionGoesOnFromItsFile) {
  const TemporaryFile file(make_random_model(crowd_spec()));
  for (const std::string type : {"f32", "f16", "bf16"}) {
    const auto model = load_naive(file.path(), {.kv_type = type, .page_slots = 16});
    for (const std::string policy : {"full", "streaming:sinks=4,window=44,every=16,realign=rotate",
                                     "cascade:size=32,n=4,sinks=4", "h2o:budget=24,recent=8"}) {
      SCOPED_TRACE(policy);
      const auto runner = new_runner(model, policy);
      const Text text(90, 10, 4);
      run_text(*runner, text, 20);
      LoadedSession loaded = through_a_file(runner->whole(), 0, model);
      ASSERT_NE(loaded.sequence, nullptr);
      EXPECT_FALSE(loaded.other_arithmetic);
      SequenceRunner again(std::move(loaded.sequence));
      EXPECT_TRUE(same_bits(run_text(again, text, 20), run_text(*runner, text, 20)));
    }
  }
}

}  // namespace
}  // namespace kvasir::test
