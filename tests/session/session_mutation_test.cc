// Session files that someone wrote with right checksums and a wrong field: each is refused with one line, by the parser
// and by the engine.
#include <algorithm>
#include <bit>
#include <functional>

#include "base/mapped_file.h"
#include "kvasir/engine.h"
#include "session/session_blocks.h"
#include "session/session_file.h"
#include "support/engine_fixture.h"

namespace kvasir::test {
namespace {

RandomModelSpec mutation_spec() {
  RandomModelSpec spec;
  spec.context = 256;
  return spec;
}

struct TablePolicy {
  const char* spec;
  bool lists;
  std::size_t runs;
};

class SessionMutation : public ::testing::Test {
 protected:
  SessionMutation()
      : file_(make_random_model(mutation_spec())),
        session_({}),
        model_(load(file_.path(), {.threads = 1, .page_slots = 16})) {}

  SessionBlocks saved(const std::string& policy) {
    const auto made = new_runner(model_, policy);
    EXPECT_TRUE(made->feed(random_tokens(150, mutation_spec().vocab, 5), 32, Logits::kNone, {}).ok());
    EXPECT_TRUE(save_session(session_.path(), made->whole(), 32, {}).ok());
    const auto mapped = MappedFile::open(session_.path());
    EXPECT_TRUE(mapped.ok());
    return SessionBlocks(mapped->bytes());
  }

  // Loads a file both ways, and goes on with it far enough for pages to fill and for tokens to be dropped.
  Status parse(const std::vector<std::byte>& bytes) {
    const auto maker = [this](const SessionHead&, const RetentionPolicy&) {
      return new_cache(model_, std::uint64_t{1} << 26);
    };
    auto loaded = parse_session(bytes, model_, maker);
    if (!loaded.ok()) return loaded.status();
    SequenceRunner again(std::move(loaded->sequence));
    (void)again.feed(random_tokens(70, mutation_spec().vocab, 9), 20, Logits::kNone, {});
    return {};
  }
  Status open(const std::vector<std::byte>& bytes) {
    write_bytes(session_.path(), bytes);
    EngineOptions options;
    options.model = file_.path();
    options.threads = 1;
    options.page_slots = 16;
    auto engine = Engine::open(options);
    EXPECT_TRUE(engine.ok()) << engine.status().message();
    auto loaded = (*engine)->load_session(session_.path(), 1);
    if (!loaded.ok()) return loaded.status();
    GenerateOptions generate;
    generate.max_tokens = 40;
    generate.ignore_eos = true;
    (void)loaded->session->read("the house the house");
    (void)loaded->session->generate(generate, {});
    return {};
  }
  void expect_refused(const SessionBlocks& blocks) {
    for (const Status& status : {parse(blocks.file()), open(blocks.file())}) {
      EXPECT_FALSE(status.ok());
      EXPECT_FALSE(status.message().empty());
      EXPECT_EQ(status.message().find('\n'), std::string::npos) << status.message();
    }
  }
  // Changes the first table of the file of a policy.
  void expect_table_refused(const TablePolicy& policy, const char* what,
                            const std::function<void(SavedTable&)>& change) {
    SCOPED_TRACE(std::string(policy.spec) + ": " + what);
    SessionBlocks blocks = saved(policy.spec);
    SavedTable table(blocks.state(), policy.lists, policy.runs);
    ASSERT_EQ(table.bytes(), blocks.state());
    change(table);
    ASSERT_NE(table.bytes(), blocks.state());
    blocks.state() = table.bytes();
    expect_refused(blocks);
  }

  TemporaryFile file_;
  TemporaryFile session_;
  std::shared_ptr<LoadedModel> model_;
};

constexpr TablePolicy kTables[] = {{"full", false, 1},
                                   {"streaming:sinks=4,window=90", false, 1},
                                   {"streaming:sinks=4,window=90,every=8,realign=rotate", false, 1},
                                   {"h2o:budget=60,recent=20,pos=compact", true, 1},
                                   {"tova:budget=60,pos=original", true, 1},
                                   {"cascade:size=80,n=4,sinks=4", true, 4}};

TEST_F(SessionMutation, UnchangedFilesGoOn) {
  for (const TablePolicy& policy : kTables) {
    SCOPED_TRACE(policy.spec);
    const std::vector<std::byte> bytes = saved(policy.spec).file();
    EXPECT_TRUE(parse(bytes).ok());
    EXPECT_TRUE(open(bytes).ok()) << open(bytes).message();
  }
}

TEST_F(SessionMutation, Ordinals) {
  for (const TablePolicy& policy : kTables) {
    const auto refused = [&](const char* what, const std::function<void(SavedTable&)>& change) {
      expect_table_refused(policy, what, change);
    };
    refused("all far off", [](SavedTable& t) {
      for (auto& column : t.columns) column.ordinal += std::uint64_t{1} << 40;
    });
    refused("all zero", [](SavedTable& t) {
      for (auto& column : t.columns) column.ordinal = 0;
    });
    refused("beyond the next one", [](SavedTable& t) { t.columns.back().ordinal = t.runs.front().next_ordinal; });
    refused("two exchanged",
            [](SavedTable& t) { std::swap(t.columns.back().ordinal, t.columns[t.columns.size() - 2].ordinal); });
    refused("none to come", [](SavedTable& t) { t.runs.front().next_ordinal = 0; });
    refused("the largest", [](SavedTable& t) { t.columns[1].ordinal = ~std::uint64_t{0}; });
    if (policy.lists) continue;  // there, numbers may be left out
    refused("next one off by one", [](SavedTable& t) { ++t.runs.front().next_ordinal; });
    refused("all off by 16 with the next", [](SavedTable& t) {
      for (auto& column : t.columns) column.ordinal += 16;
      t.runs.front().next_ordinal += 16;
    });
  }
}

TEST_F(SessionMutation, ColumnsAndTails) {
  for (const TablePolicy& policy : kTables) {
    const auto refused = [&](const char* what, const std::function<void(SavedTable&)>& change) {
      expect_table_refused(policy, what, change);
    };
    refused("no tail", [](SavedTable& t) { t.runs.front().tail = 0xffffffff; });
    refused("another tail", [](SavedTable& t) { t.runs.front().tail = t.runs.front().tail == 0 ? 1 : 0; });
    refused("first", [](SavedTable& t) { ++t.columns[1].first; });
    refused("first far off", [](SavedTable& t) { t.columns.back().first += std::int64_t{1} << 50; });
    refused("a page given back", [](SavedTable& t) { t.given_begin = 16, t.given_end = 32; });
    if (!std::string_view(policy.spec).ends_with("pos=original"))  // there it says nothing
      refused("base", [](SavedTable& t) { ++t.columns[1].base; });
    if (policy.lists) refused("offset", [](SavedTable& t) { t.columns[0].offsets.back() += 1U << 30; });
  }
}

// Splits frames until there are `most`, each into two that are as rotated.
void split_frames(SavedTable& table, std::size_t most) {
  for (std::size_t f = 0; f < table.frames.size() && table.frames.size() < most; ++f)
    while (table.frames.size() < most && table.frames[f].entries.size() > 1) {
      SavedTable::Frame behind = table.frames[f];
      SavedTable::Frame& frame = table.frames[f];
      frame.entries.pop_back();
      behind.entries.erase(behind.entries.begin(), behind.entries.end() - 1);
      behind.tokens = std::popcount(behind.entries.front().live);
      frame.tokens -= behind.tokens;
      table.frames.insert(table.frames.begin() + static_cast<std::ptrdiff_t>(f) + 1, behind);
    }
}

TEST_F(SessionMutation, Frames) {
  for (const TablePolicy& policy : kTables) {
    const auto refused = [&](const char* what, const std::function<void(SavedTable&)>& change) {
      expect_table_refused(policy, what, change);
    };
    for (const std::size_t most : {2, 3, 32})
      refused("split", [&](SavedTable& t) { split_frames(t, t.frames.size() - 1 + most); });
    refused("split within a column", [](SavedTable& t) {
      auto& frame = t.frames.back();
      SavedTable::Frame behind = frame;
      const std::uint64_t low = frame.entries.back().live & (~frame.entries.back().live + 1);
      behind.entries.erase(behind.entries.begin(), behind.entries.end() - 1);
      behind.entries.front().live &= ~low;
      frame.entries.back().live = low;
      behind.tokens = std::popcount(behind.entries.front().live);
      frame.tokens -= behind.tokens;
      t.frames.push_back(behind);
    });
    refused("origin against rotation", [](SavedTable& t) {
      if (!t.lists) split_frames(t, t.frames.size() + 1);
      t.frames.back().origin += 5, t.frames.back().rotation -= 5;
    });
    refused("another run", [](SavedTable& t) { t.frames.back().run = 1; });
    refused("an empty frame more", [](SavedTable& t) {
      t.frames.push_back(t.frames.back());
      t.frames.back().entries.clear();
      t.frames.back().tokens = 0;
    });
  }
}

// A list of scores that the policy of the head could not hold: what it charges for rests on what it keeps.
TEST_F(SessionMutation, ListsOfAnotherPolicy) {
  for (const auto& [from, to] : std::vector<std::pair<std::string, std::string>>{
           {"budget=99%", "budget=10%"}, {"budget=99%", "budget=50%"}, {"budget=99%", "budget=90%"}}) {
    SCOPED_TRACE(to);
    SessionBlocks blocks = saved("h2o:recent=4,budget=99%");
    for (std::vector<std::byte>* bytes : {&blocks.head(), &blocks.state()}) {
      const auto* text = reinterpret_cast<const std::byte*>(from.data());
      const auto at = std::search(bytes->begin(), bytes->end(), text, text + from.size());
      ASSERT_NE(at, bytes->end());
      std::memcpy(&*at, to.data(), to.size());
    }
    expect_refused(blocks);
  }
}

TEST_F(SessionMutation, Heads) {
  const auto changed = [&](const std::function<void(SavedHead&)>& change) {
    SessionBlocks blocks = saved("streaming:sinks=4,window=90");
    SavedHead head(blocks.head());
    EXPECT_EQ(head.bytes(), blocks.head());
    change(head);
    blocks.head() = head.bytes();
    return blocks;
  };
  for (const char* policy :
       {"", "nonsense", "full", "streaming:sinks=4,window=999999999999", "streaming:sinks=999999999999,window=1",
        "streaming:sinks=4,window=1099511627776,every=1099511627776", "window:size=999999999999",
        "h2o:budget=999999999999", "h2o:budget=100%", "cascade:size=1099511627776,n=16,sinks=0",
        "lethe:max=1099511627776,start=1", "streaming:sinks=4,window=91", "recompute",
        "snapkv:budget=40,window=8+tova:budget=24"}) {
    SCOPED_TRACE(policy);
    expect_refused(changed([&](SavedHead& head) { head.policy = policy; }));
  }
  for (const std::int32_t slots : {0, -16, 17, 32, 64, 1 << 30}) {
    SCOPED_TRACE(slots);
    const SessionBlocks blocks = changed([&](SavedHead& head) { head.slots = slots; });
    EXPECT_FALSE(open(blocks.file()).ok());
  }
  for (const char* type : {"", "f31", "f32f32f32"}) {
    SCOPED_TRACE(type);
    EXPECT_FALSE(open(changed([&](SavedHead& head) { head.kv_type = type; }).file()).ok());
  }
  for (const std::int32_t chunk : {-1, 4097, 1 << 30}) {
    SCOPED_TRACE(chunk);
    expect_refused(changed([&](SavedHead& head) { head.chunk = chunk; }));
  }
}

}  // namespace
}  // namespace kvasir::test
