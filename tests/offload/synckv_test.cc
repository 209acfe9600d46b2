// SyncKV through the engine: which tokens every head reads at every step, against the definition computed anew from the
// attention itself; and what must not matter.
#include <cmath>
#include <cstdio>
#include <map>
#include <set>

#include "offload/clustered_profile.h"
#include "planning/memory_plan.h"
#include "retention/head_profile.h"
#include "sequence/policy_cases.h"

namespace kvasir::test {
namespace {

RandomModelSpec synckv_spec() {
  RandomModelSpec spec = small_spec();
  spec.layers = 3;
  spec.heads = 8;
  spec.kv_heads = 4;
  spec.d = 64;
  spec.weight_std = 0;  // so even that no weight underflows: what is read has a weight
  return spec;
}
constexpr int kLayers = 3, kHeads = 4, kGroup = 2;

// Everything that was attended to: weights[token][layer][query head][index].
class Recorder final : public kvasir::AttentionObserver {
 public:
  void observe(const ObservedAttention& attention) override {
    for (int row = 0; row < attention.rows; ++row)
      for (int head = 0; head < attention.heads; ++head) {
        const std::span<const float> weights = attention.of(row, head);
        const auto token = static_cast<int>(weights.size()) - 1;  // nothing is ever dropped
        all[token][attention.layer][head].assign(weights.begin(), weights.end());
      }
  }
  // The attention of a KV head's group, max-pooled.
  std::vector<float> pooled(int token, int layer, int head) {
    std::vector<float> most = all[token][layer][head * kGroup];
    for (int h = 1; h < kGroup; ++h)
      for (std::size_t i = 0; i < most.size(); ++i)
        most[i] = std::max(most[i], all[token][layer][head * kGroup + h][i]);
    return most;
  }
  std::map<int, std::map<int, std::map<int, std::vector<float>>>> all;
};

// The `count` candidates of largest weight, by one pass for each.
std::vector<int> best(const std::vector<float>& weights, std::int64_t count, const std::set<int>& candidates) {
  std::set<int> left = candidates;
  std::vector<int> result;
  while (!left.empty() && static_cast<std::int64_t>(result.size()) < count) {
    int most = *left.begin();
    for (const int id : left)
      if (weights[id] >= weights[most]) most = id;  // ascending: the younger wins
    result.push_back(most);
    left.erase(most);
  }
  return result;
}

std::set<int> upto(int end) {
  std::set<int> ids;
  for (int id = 0; id < end; ++id) ids.insert(id);
  return ids;
}

struct Segment {
  int tokens;
  bool prompt;
};

struct Case {
  std::string spec;
  double mem = 0;      // share; 0: k counts
  std::int64_t k = 0;  // of the prompt
  double fixed = 0.5;
  int stride = 5;
  int recent = 32;
};

class SyncKv : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    file_ = std::make_unique<TemporaryFile>(make_random_model(synckv_spec()));
    model_ = load(file_->path(), {.threads = 2, .kv_type = "f32"});
    ASSERT_NE(model_, nullptr);
    profile_ = clustered_profile(model_->fingerprint);
    path_ = file_->path() + ".profile";
    write_text(path_, format_head_profile(profile_));
  }
  static void TearDownTestSuite() {
    std::remove(path_.c_str());
    model_.reset();
    file_.reset();
  }

  static void feed(SequenceRunner& runner, std::span<const TokenId> tokens, bool prompt, int chunk,
                   std::vector<float>* logits = nullptr) {
    const Status status = runner.feed(
        tokens, chunk, SequenceRunner::Logits::kAll,
        [&](std::int64_t, int, std::span<const float> out) {
          if (logits != nullptr) logits->insert(logits->end(), out.begin(), out.end());
          return true;
        },
        prompt ? SequenceRunner::Source::kPrompt : SequenceRunner::Source::kGenerated);
    ASSERT_TRUE(status.ok()) << status.message();
  }

  // Which representative a head of a layer follows.
  static int rep(int layer, int head) { return profile_.clusters[layer].representative(head); }

  // Feeds the segments and compares what was read with the definition.
  static void check(const Case& c, const std::vector<Segment>& segments, int chunk);

  static std::unique_ptr<TemporaryFile> file_;
  static std::shared_ptr<LoadedModel> model_;
  static HeadProfile profile_;
  static std::string path_;
};
std::unique_ptr<TemporaryFile> SyncKv::file_;
std::shared_ptr<LoadedModel> SyncKv::model_;
HeadProfile SyncKv::profile_;
std::string SyncKv::path_;

void SyncKv::check(const Case& c, const std::vector<Segment>& segments, int chunk) {
  const auto runner = new_runner(model_, c.spec);
  Recorder recorder;
  runner->listener().set_tap(&recorder);
  int total = 0;
  for (const Segment& segment : segments) total += segment.tokens;
  const auto text = random_tokens(total, synckv_spec().vocab, 7);
  int done = 0;
  for (const Segment& segment : segments) {
    feed(*runner, std::span(text).subspan(done, segment.tokens), segment.prompt, chunk);
    done += segment.tokens;
  }
  // sets[layer][R head]
  std::map<int, std::map<int, std::set<int>>> fixed, dynamic;
  int token = 0, n = 0, unread = 0;
  std::int64_t k = 0;
  for (const Segment& segment : segments) {
    int step = 0, requested = 0;  // the step of the last request; 0: the prompt's end
    for (int i = 0; i < segment.tokens; ++i, ++token) {
      if (!segment.prompt) ++step;
      for (int layer = 0; layer < kLayers; ++layer)
        for (int head = 0; head < kHeads; ++head) {
          std::set<int> reads = upto(token + 1);
          if (!segment.prompt && n > 0 && rep(layer, head) != head) {
            // What is behind the last request, or among the newest.
            std::set<int> tail;
            for (int id = 0; id <= token; ++id)
              if (id >= n + requested || id > token - c.recent) tail.insert(id);
            if (static_cast<std::int64_t>(reads.size() - tail.size()) > k) {
              reads = tail;
              for (auto* sets : {&fixed, &dynamic})
                for (const int id : (*sets)[layer][rep(layer, head)]) reads.insert(id);
              ++unread;
            }
          }
          for (int h = head * kGroup; h < (head + 1) * kGroup; ++h) {
            const std::vector<float>& weights = recorder.all[token][layer][h];
            ASSERT_EQ(weights.size(), static_cast<std::size_t>(token) + 1);
            double sum = 0;
            for (int id = 0; id <= token; ++id) {
              ASSERT_EQ(weights[id] > 0, reads.contains(id))
                  << c.spec << ": token " << token << " layer " << layer << " head " << h << " id " << id;
              sum += static_cast<double>(weights[id]);
            }
            ASSERT_NEAR(sum, 1, 1e-4);
          }
        }
      const bool ends_prompt = segment.prompt && i + 1 == segment.tokens;
      if (ends_prompt) {
        n = token + 1;
        k = c.k;
        if (c.mem > 0) k = static_cast<std::int64_t>(std::floor(n * (c.mem - 0.5) / (1 - 0.5) + 1e-9));
      }
      const auto kept = static_cast<std::int64_t>(std::floor(c.fixed * static_cast<double>(k) + 1e-9));
      for (int layer = 0; layer < kLayers; ++layer)
        for (int head = 0; head < kHeads; ++head) {
          if (rep(layer, head) != head) continue;
          std::set<int>& own = fixed[layer][head];
          if (ends_prompt) {
            const std::vector<int> first = best(recorder.pooled(token, layer, head), k, upto(n));
            own.clear();
            dynamic[layer][head].clear();
            for (std::size_t j = 0; j < first.size(); ++j)
              (static_cast<std::int64_t>(j) < kept ? own : dynamic[layer][head]).insert(first[j]);
          }
          if (!segment.prompt && n > 0 && step % c.stride == 0) {
            // Those that will not be in the next step's tail.
            std::set<int> candidates;
            for (int id = 0; id <= token; ++id)
              if (id < n + step && id <= token + 1 - c.recent && !own.contains(id)) candidates.insert(id);
            const std::vector<int> next = best(recorder.pooled(token, layer, head), k - kept, candidates);
            dynamic[layer][head] = std::set<int>(next.begin(), next.end());
          }
        }
      if (!segment.prompt && step % c.stride == 0) requested = step;
    }
  }
  EXPECT_GT(unread, 50) << c.spec;
}

TEST_F(SyncKv, EveryHeadReadsWhatTheDefinitionSays) {
  const std::string with = ",profile=" + path_ + ",reps=2";
  const std::vector<Case> cases = {
      {"synckv:mem=60%,recent=8,stride=3" + with, 0.6, 0, 0.5, 3, 8},
      {"synckv:mem=50%,recent=5,stride=4" + with, 0.5, 0, 0.5, 4, 5},
      {"synckv:budget=21,recent=3,stride=7,static=0.3" + with, 0, 21, 0.3, 7, 3},
      {"synckv:budget=20,recent=0,stride=1,static=0" + with, 0, 20, 0, 1, 0},
      {"synckv:budget=33,recent=10,static=1" + with, 0, 33, 1, 5, 10},
      {"synckv:budget=64,recent=10,static=0.75" + with, 0, 64, 0.75, 5, 10},
  };
  const std::vector<std::vector<Segment>> texts = {
      {{90, true}, {31, false}},
      {{5, false}, {60, true}, {20, false}, {13, true}, {25, false}, {1, true}, {6, false}},
  };
  for (const Case& c : cases)
    for (const auto& text : texts) {
      check(c, text, 32);
      if (HasFatalFailure()) return;
    }
}

TEST_F(SyncKv, ABudgetThatCoversEverythingGivesTheBitsOfFull) {
  const Text text(150, 60, 3);
  for (const char* type : {"f32", "f16", "q8"})
    for (const int slots : {16, 64}) {
      const auto model = load(file_->path(), {.threads = 2, .kv_type = type, .page_slots = slots});
      const std::vector<float> full = run_text(*new_runner(model, "full"), text, 0);
      for (const std::string spec :
           {"synckv:mem=100%", "synckv:budget=300,stride=2,recent=1", "synckv:budget=60,reps=4"}) {
        const auto runner = new_runner(model, spec);
        EXPECT_TRUE(same_bits(run_text(*runner, text, 0), full)) << spec << ' ' << type << ' ' << slots;
        EXPECT_TRUE(all_read(runner->policy()));
      }
      const auto runner = new_runner(model, "synckv:budget=60");
      EXPECT_FALSE(same_bits(run_text(*runner, text, 0), full)) << "nothing was left unread";
      EXPECT_FALSE(all_read(runner->policy()));
    }
}

TEST_F(SyncKv, ChunksPassesAndThreadsDoNotMatter) {
  const Text text(170, 40, 4);
  for (const std::string spec : {"synckv:budget=40,recent=6", "synckv:mem=70%,recent=3,stride=2,reps=2"}) {
    std::vector<float> first;
    for (const int threads : {1, 3}) {
      const auto model = load(file_->path(), {.threads = threads});
      for (const int chunk : {0, 1, 7, 64})
        for (const int rows : {1000, 5}) {
          const auto runner = new_runner(model, spec);
          runner->set_most_rows(rows);
          const std::vector<float> got = run_text(*runner, text, chunk);
          EXPECT_FALSE(all_read(runner->policy()));
          if (first.empty()) first = got;
          EXPECT_TRUE(same_bits(got, first))
              << spec << " threads " << threads << " chunk " << chunk << " rows " << rows;
        }
    }
  }
}

// Without a profile: the clusters are those of the prompt's last queries.
TEST_F(SyncKv, TheProfileOfAPromptIsThatOfItsLastQueries) {
  constexpr int kPrompt = 180;
  const auto text = random_tokens(kPrompt + 1, synckv_spec().vocab, 5);
  const auto runner = new_runner(model_, "synckv:budget=20,recent=0,static=1,reps=2");
  Recorder recorder;
  runner->listener().set_tap(&recorder);
  feed(*runner, std::span(text).first(kPrompt), true, 50);
  feed(*runner, std::span(text).subspan(kPrompt), false, 0);
  for (int layer = 0; layer < kLayers; ++layer) {
    std::vector<double> overlap(16, 0.0);
    int queries = 0;
    for (int query = kPrompt - 1; query >= std::max(64, kPrompt - 128); query -= 4, ++queries) {
      std::vector<std::set<int>> sets;
      for (int head = 0; head < kHeads; ++head) {
        const std::vector<int> top = best(recorder.pooled(query, layer, head), 64, upto(query + 1));
        sets.emplace_back(top.begin(), top.end());
      }
      for (int a = 0; a < kHeads; ++a)
        for (int b = 0; b < kHeads; ++b)
          for (const int id : sets[a]) overlap[a * 4 + b] += sets[b].contains(id) ? 1.0 / 64 : 0;
    }
    for (double& mean : overlap) mean /= queries;
    const HeadClusters clusters = cluster_heads(overlap, kHeads, 2, 1 + layer);
    for (int head = 0; head < kHeads; ++head) {
      std::set<int> reads = upto(kPrompt + 1);
      if (!clusters.is_representative(head)) {
        const auto top = best(recorder.pooled(kPrompt - 1, layer, clusters.representative(head)), 20, upto(kPrompt));
        reads = std::set<int>(top.begin(), top.end());
        reads.insert(kPrompt);
      }
      std::set<int> read;
      for (int id = 0; id <= kPrompt; ++id)
        if (recorder.all[kPrompt][layer][head * kGroup][id] > 0) read.insert(id);
      EXPECT_EQ(read, reads) << "layer " << layer << " head " << head;
    }
  }
}

TEST_F(SyncKv, AStateThatIsRestoredGoesOnAlike) {
  for (const std::string& spec :
       {std::string("synckv:budget=30,recent=4"), "synckv:budget=30,recent=4,reps=2,profile=" + path_}) {
    for (const int cut : {40, 110, 120, 133}) {
      const auto policy = make_policy(spec);
      ASSERT_TRUE(policy.ok());
      const TableLayout layout{.layers = kLayers, .per_layer = kHeads, .heads = kGroup};
      (*policy)->begin(layout);
      // Masses that are numbers of the token and the table, in any order.
      const auto drive = [&](RetentionPolicy& p, int from, int to) {
        for (int id = from; id < to; ++id) {
          const bool prompt = id < 120;
          const PolicyChunk chunk{id, 1, prompt, prompt ? 119 - id : 0};
          KeepPlan plan;
          for (int t = 0; t < layout.tables(); ++t) {
            std::vector<double> mass;
            for (int j = 0; j <= id; ++j) mass.push_back(std::fmod((j + 1) * (t + 3) * 0.618 + id * 0.37, 1.0));
            const std::span<const double> span = mass;
            if (wants_row(p, chunk, 0)) p.as<ObservesMasses>()->observe(chunk, t, 0, {&span, 1});
          }
          for (int t = 0; t < layout.tables(); ++t) p.end_chunk(chunk, t, plan);
          for (int t = 0; t < layout.tables(); ++t) p.finish_chunk(chunk, t, plan);
          EXPECT_TRUE(plan.empty());
          EXPECT_LE(p.state_bytes(), p.most_state_bytes(layout, id + 1, 1));
        }
      };
      drive(**policy, 0, cut);
      std::vector<std::byte> saved;
      ByteWriter writer(&saved);
      (*policy)->save(writer);
      const auto copy = make_policy((*policy)->traits().spec);
      ASSERT_TRUE(copy.ok()) << copy.status().message();
      (*copy)->begin(layout);
      ByteReader reader(saved);
      ASSERT_TRUE((*copy)->restore(reader).ok());
      EXPECT_EQ(reader.left(), 0u);
      drive(**policy, cut, 150);
      drive(**copy, cut, 150);
      std::vector<std::byte> one, other;
      ByteWriter first(&one), second(&other);
      (*policy)->save(first);
      (*copy)->save(second);
      EXPECT_EQ(one, other) << spec << " cut " << cut;
      for (int t = 0; t < layout.tables(); ++t) {
        std::vector<IndexRange> a, b;
        EXPECT_EQ((*policy)->as<LeavesUnread>()->reads({150, 1}, t, a),
                  (*copy)->as<LeavesUnread>()->reads({150, 1}, t, b));
        EXPECT_EQ(a, b);
      }
    }
  }
}

TEST_F(SyncKv, RefusesModelsAndProfilesThatDoNotFit) {
  const auto why = [&](const std::shared_ptr<LoadedModel>& model, const std::string& spec) {
    const auto runner = new_runner(model, spec);
    const auto text = random_tokens(4, 100, 1);
    return std::string(runner->feed(text, 0, SequenceRunner::Logits::kNone, {}).message());
  };
  EXPECT_EQ(why(model_, "synckv:mem=20%"),
            "policy 'synckv:mem=20%': mem=20% is below what 1 of 4 KV heads take, which read everything; give mem=25% "
            "or more");
  EXPECT_EQ(why(model_, "synckv:reps=5"),
            "policy 'synckv:mem=30%,reps=5': reps=5 is above the 4 KV heads of the model");
  HeadProfile other = profile_;
  ++other.fingerprint.low;
  const std::string path = path_ + ".other";
  write_text(path, format_head_profile(other));
  EXPECT_NE(why(model_, "synckv:profile=" + path).find("the head profile is of another model"), std::string::npos);
  // The canonical spec names the content of the file.
  const std::string spec = (*make_policy("synckv:profile=" + path))->traits().spec;
  EXPECT_TRUE(make_policy(spec).ok());
  ++other.seed;
  write_text(path, format_head_profile(other));
  EXPECT_FALSE(make_policy(spec).ok());
  write_text(path, "nothing");
  EXPECT_EQ(make_policy("synckv:profile=" + path).status().message(), "'" + path + "' is not a head profile");
  std::remove(path.c_str());
  RandomModelSpec windowed = synckv_spec();
  windowed.architecture = "llama";
  windowed.sliding_window = 32;
  const TemporaryFile file(make_random_model(windowed));
  EXPECT_NE(why(load(file.path()), "synckv").find("sliding window"), std::string::npos);
}

}  // namespace
}  // namespace kvasir::test
