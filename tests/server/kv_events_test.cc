// What an index outside hears of the prefix cache: that it is what the prefix cache holds, whatever is lost on the way.
#include "server/kv_events/kv_events.h"

#include <gtest/gtest.h>
#include <zmq.h>

#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "kvasir/engine.h"
#include "support/engine_fixture.h"

namespace kvasir::server {
namespace {

using Json = nlohmann::json;

Json decode(const KvEventBatch& batch) {
  return Json::from_msgpack(encode(batch));
}

TEST(KvEventBatch, EncodesWhatReadersExpect) {
  KvEventCollector collector;
  collector.clear();
  const std::vector<std::int32_t> first{1, 2}, second{3, 100000};
  const std::uint64_t large = ~std::uint64_t{0};
  collector.stored(large, 0, first, "", "");
  collector.stored(7, large, second, "", "");  // follows
  collector.stored(8, large, first, "", "");   // does not
  collector.removed(7);
  collector.removed(large);
  const Json expected = {
      0.5,
      {{"AllBlocksCleared"},
       {"BlockStored", {large, 7}, nullptr, {1, 2, 3, 100000}, 2, nullptr, "cpu", nullptr, nullptr, nullptr},
       {"BlockStored", {8}, large, {1, 2}, 2, nullptr, "cpu", nullptr, nullptr, nullptr},
       {"BlockRemoved", {7, large}, "cpu", nullptr}},
      0};
  const KvEventBatch batch = collector.take(0.5);
  EXPECT_EQ(decode(batch), expected);
  EXPECT_TRUE(collector.empty());
  EXPECT_GE(bytes_of(batch), 7 * sizeof(std::uint64_t));
  // Above 2^63 the number is unsigned: cf and eight bytes, not a negative one.
  EXPECT_NE(encode(batch).find("\xcf\xff\xff\xff\xff\xff\xff\xff\xff"), std::string::npos);
}

TEST(KvEventBatch, BlocksOfOtherLengthsAreOtherEvents) {
  KvEventCollector collector;
  const std::vector<std::int32_t> two{1, 2}, four{1, 2, 3, 4};
  collector.stored(1, 0, two, "", "");
  collector.stored(2, 1, four, "", "");
  const Json events = decode(collector.take(1))[1];
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0][4], 2);
  EXPECT_EQ(events[1][4], 4);
}

TEST(KvEventBatch, TheServersSaltIsNotPublished) {
  KvEventCollector collector;
  const std::vector<std::int32_t> tokens{1, 2};
  using namespace std::string_literals;
  const std::string secret = "a-secret-of-the-server";
  collector.stored(1, 0, tokens, secret + "\0mine"s, "");
  collector.stored(2, 1, tokens, secret + "\0mine"s, "");
  collector.stored(3, 0, tokens, secret, "");
  collector.stored(4, 0, tokens, "\0mine"s, "");
  collector.stored(5, 0, tokens, "another-secret", "");
  collector.stored(6, 0, tokens, "\0mine"s, "q8");
  collector.stored(7, 0, tokens, "", "", "lora-1:x");
  const KvEventBatch batch = collector.take(1);
  EXPECT_EQ(encode(batch).find("secret"), std::string::npos);
  const Json events = decode(batch)[1];
  ASSERT_EQ(events.size(), 6u);
  EXPECT_EQ(events[5][8], Json::parse(R"([["kv.adapters=lora-1:x"]])"));
  // One list a block, and only the first block has keys.
  const Json& keys = events[0][8];
  ASSERT_EQ(keys.size(), 2u);
  ASSERT_EQ(keys[0].size(), 2u);
  EXPECT_EQ(keys[0][1], "mine");
  EXPECT_TRUE(keys[1].is_null());
  EXPECT_EQ(events[1][8], Json::array({Json::array({keys[0][0]})}));
  EXPECT_EQ(events[2][8], Json::array({Json::array({"mine"})}));
  EXPECT_NE(events[3][8][0][0], keys[0][0]);
  EXPECT_EQ(events[4][8], Json::array({Json::array({"mine", "kv.codec=q8"})}));
  // Another process has other names.
  EXPECT_NE(KvEventCollector().published(secret), collector.published(secret));
}

// A subscriber and a client of the replay socket.
class Reader {
 public:
  explicit Reader(const KvEvents& events) : context_(zmq_ctx_new()) {
    subscriber_ = zmq_socket(context_, ZMQ_SUB);
    EXPECT_EQ(zmq_setsockopt(subscriber_, ZMQ_SUBSCRIBE, "", 0), 0);
    EXPECT_EQ(zmq_connect(subscriber_, events.endpoint().c_str()), 0);
    dealer_ = zmq_socket(context_, ZMQ_DEALER);
    EXPECT_EQ(zmq_connect(dealer_, events.replay_endpoint().c_str()), 0);
  }
  ~Reader() {
    const int none = 0;
    for (void* socket : {subscriber_, dealer_}) {
      zmq_setsockopt(socket, ZMQ_LINGER, &none, sizeof(none));
      zmq_close(socket);
    }
    zmq_ctx_term(context_);
  }

  void ask(std::uint64_t from) {
    std::array<char, 8> number{};
    for (std::size_t i = 0; i < 8; ++i) number[i] = static_cast<char>(from >> (56 - 8 * i));
    EXPECT_EQ(zmq_send(dealer_, "", 0, ZMQ_SNDMORE), 0);
    EXPECT_EQ(zmq_send(dealer_, number.data(), number.size(), 0), 8);
  }

  // Returns the numbers that the replay has; its end must come.
  std::vector<std::uint64_t> replayed() {
    std::vector<std::uint64_t> numbers;
    while (true) {
      const auto message = next(dealer_, 10000);
      if (!message || message->size() != 4) {
        ADD_FAILURE() << "no end of the replay";
        return numbers;
      }
      if (message->at(3).empty()) return numbers;
      numbers.push_back(number_of(message->at(2)));
    }
  }

  // Applies what comes, until nothing has come for a while, to `blocks`: hash and tokens.
  std::map<std::uint64_t, Json> blocks;
  int cleared = 0;
  std::uint64_t last = 0;
  void follow(int silence = 500) {
    while (const auto message = next(subscriber_, silence)) {
      ASSERT_EQ(message->size(), 3u);
      last = number_of(message->at(1));
      const Json batch = Json::from_msgpack(message->at(2));
      for (const Json& event : batch[1]) {
        if (event[0] == "AllBlocksCleared") {
          blocks.clear();
          ++cleared;
        } else if (event[0] == "BlockRemoved") {
          for (const Json& hash : event[1]) EXPECT_EQ(blocks.erase(hash.get<std::uint64_t>()), 1u);
        } else {
          const std::size_t size = event[4].get<std::size_t>();
          for (std::size_t i = 0; i < event[1].size(); ++i) {
            const Json tokens(event[3].begin() + static_cast<std::ptrdiff_t>(i * size),
                              event[3].begin() + static_cast<std::ptrdiff_t>((i + 1) * size));
            EXPECT_TRUE(blocks.emplace(event[1][i].get<std::uint64_t>(), tokens).second);
          }
        }
      }
    }
  }

 private:
  static std::uint64_t number_of(const std::string& bytes) {
    std::uint64_t number = 0;
    for (const char byte : bytes) number = number << 8 | static_cast<unsigned char>(byte);
    return number;
  }

  static std::optional<std::vector<std::string>> next(void* socket, int timeout) {
    zmq_pollitem_t item{socket, 0, ZMQ_POLLIN, 0};
    if (zmq_poll(&item, 1, timeout) <= 0) return std::nullopt;
    std::vector<std::string> frames;
    for (int more = 1; more != 0;) {
      zmq_msg_t message;
      zmq_msg_init(&message);
      if (zmq_msg_recv(&message, socket, 0) < 0) return std::nullopt;
      frames.emplace_back(static_cast<const char*>(zmq_msg_data(&message)), zmq_msg_size(&message));
      more = zmq_msg_more(&message);
      zmq_msg_close(&message);
    }
    return frames;
  }

  void* context_;
  void* subscriber_;
  void* dealer_;
};

// What the prefix cache holds, by a listener of its own.
class Truth final : public PrefixListener {
 public:
  void stored(std::uint64_t hash, std::uint64_t parent, std::span<const std::int32_t> tokens, std::string_view salt,
              std::string_view codec, std::string_view adapters) override {
    EXPECT_TRUE(parent == 0 || blocks.contains(parent));
    EXPECT_EQ(salt, "");
    EXPECT_EQ(codec, "");
    EXPECT_EQ(adapters, "");
    EXPECT_TRUE(blocks.emplace(hash, Json(std::vector(tokens.begin(), tokens.end()))).second);
  }
  void removed(std::uint64_t hash) override { EXPECT_EQ(blocks.erase(hash), 1u); }
  std::map<std::uint64_t, Json> blocks;
};

class KvEventsTest : public ::testing::Test {
 protected:
  KvEventsTest() : file_(test::make_random_model(spec())) {
    EngineOptions options{.model = file_.path(), .threads = 1, .page_slots = 16};
    options.kv_memory = 2 << 20;
    options.prefix_memory = 1 << 20;
    auto engine = Engine::open(options);
    EXPECT_TRUE(engine.ok()) << engine.status().message();
    engine_ = std::move(*engine);
  }
  void TearDown() override { engine_->set_prefix_listener(nullptr); }
  static test::RandomModelSpec spec() {
    test::RandomModelSpec made;
    made.context = 1024;
    return made;
  }

  static std::unique_ptr<KvEvents> open(KvEventOptions options) {
    options.endpoint = options.replay = "tcp://127.0.0.1:*";
    options.topic = "kv@here@model";
    auto events = KvEvents::open(options);
    EXPECT_TRUE(events.ok()) << events.status().message();
    return events.ok() ? std::move(*events) : nullptr;
  }

  // Runs requests to their end, with one text each.
  void run(KvEvents& events, std::uint64_t seed, int requests = 1) {
    for (int i = 0; i < requests; ++i) {
      RequestOptions options;
      options.tokens = test::random_tokens(100, spec().vocab, seed + static_cast<std::uint64_t>(i));
      options.generate.max_tokens = 4;
      const auto id = engine_->submit(options);
      ASSERT_TRUE(id.ok()) << id.status().message();
      while (engine_->unfinished() > 0) {
        ASSERT_TRUE(engine_->poll().ok());
        events.end_pass(*engine_);
      }
    }
  }

  std::map<std::uint64_t, Json> truth() {
    Truth truth;
    engine_->set_prefix_listener(&truth);
    engine_->set_prefix_listener(nullptr);
    return truth.blocks;
  }

  test::TemporaryFile file_;
  std::unique_ptr<Engine> engine_;
};

TEST_F(KvEventsTest, TellsWhatIsHeld) {
  const auto events = open({});
  engine_->set_prefix_listener(events.get());
  Reader reader(*events);
  reader.follow();  // by then the subscription counts
  run(*events, 1, 3);
  reader.follow();
  EXPECT_FALSE(reader.blocks.empty());
  EXPECT_EQ(reader.blocks, truth());
  EXPECT_FALSE(events->wants_pass());
}

// Where batches do not fit into the queue, an index begins anew, and is right after each.
TEST_F(KvEventsTest, AFullQueueBeginsAnew) {
  KvEventOptions options;
  options.queued_bytes = 1;
  const auto events = open(options);
  engine_->set_prefix_listener(events.get());
  Reader reader(*events);
  reader.follow();  // by then the subscription counts
  for (std::uint64_t seed = 10; seed < 14; ++seed) {
    run(*events, seed);
    reader.follow();
    EXPECT_FALSE(reader.blocks.empty());
    EXPECT_EQ(reader.blocks, truth());
    engine_->set_prefix_listener(events.get());
  }
  EXPECT_GE(reader.cleared, 4);
}

// Who asks for what is no longer kept gets the rest, and a new beginning.
TEST_F(KvEventsTest, AReplayOfWhatIsGoneBeginsAnew) {
  KvEventOptions options;
  options.kept_batches = 2;
  options.anew_gap = std::chrono::milliseconds(0);
  const auto events = open(options);
  engine_->set_prefix_listener(events.get());
  Reader reader(*events);
  reader.follow();  // by then the subscription counts
  run(*events, 20, 5);
  reader.follow();
  const auto before = reader.last;
  const int cleared = reader.cleared;
  ASSERT_GE(before, 4u);
  EXPECT_FALSE(events->wants_pass());
  reader.ask(before - 1);
  EXPECT_EQ(reader.replayed(), (std::vector<std::uint64_t>{before - 1, before}));
  EXPECT_FALSE(events->wants_pass());
  reader.ask(0);
  EXPECT_EQ(reader.replayed(), (std::vector<std::uint64_t>{before - 1, before}));
  for (int tries = 0; tries < 100 && !events->wants_pass(); ++tries) usleep(10000);
  EXPECT_TRUE(events->wants_pass());
  reader.blocks.clear();  // as one that has just come
  events->end_pass(*engine_);
  reader.follow();
  EXPECT_EQ(reader.last, before + 1);
  EXPECT_EQ(reader.cleared, cleared + 1);
  EXPECT_EQ(reader.blocks, truth());
  EXPECT_FALSE(events->wants_pass());
}

TEST(KvEvents, EndpointsThatCannotBe) {
  EXPECT_EQ(KvEvents::open({.endpoint = "nonsense", .topic = "t"}).status().code(), StatusCode::kInvalidArgument);
  auto first = KvEvents::open({.endpoint = "tcp://127.0.0.1:*", .topic = "t"});
  ASSERT_TRUE(first.ok());
  EXPECT_EQ((*first)->replay_endpoint(), "");
  const auto second = KvEvents::open({.endpoint = (*first)->endpoint(), .topic = "t"});
  EXPECT_EQ(second.status().code(), StatusCode::kIo);
  EXPECT_NE(second.status().message().find((*first)->endpoint()), std::string::npos);
  EXPECT_TRUE(default_kv_topic("m").starts_with("kv@") && default_kv_topic("m").ends_with("@m"));
}

}  // namespace
}  // namespace kvasir::server
