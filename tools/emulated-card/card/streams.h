// Graphs of work that streams do not run but keep.
#pragma once
#include "card.h"
#include <thread>

namespace card {

struct Graph {
  std::vector<Work> work;
  // What it allocates, and of that what it does not free.
  std::vector<uintptr_t> memory, kept;
  // Bytes that it has at once, where it is recorded and at most.
  size_t bytes = 0, most = 0;
  int executables = 0;
  ~Graph();
};

enum class Mode { Global = 0, ThreadLocal = 1, Relaxed = 2 };

struct Capture {
  Mode mode;
  Stream *origin;
  std::thread::id thread;
  uint64_t id;
  bool invalid = false;
  std::shared_ptr<Graph> graph = std::make_shared<Graph>();
  // Streams that wait for its events, and whose own it waited for.
  std::set<Stream *> unjoined = {};
};

struct Executable {
  std::shared_ptr<Graph> graph;
  bool frees_on_launch;
};

// A place in a stream, or in a capture.
struct Event {
  Stream *stream = nullptr;
  uint64_t position = 0;
  std::weak_ptr<Capture> capture;
  bool captured = false;
  // When it was passed, in ms.
  std::shared_ptr<double> passed;
};

extern Stream &legacy;
extern std::set<Stream *> &streams;

// Fails, and spoils what is captured, where a card's driver would: waiting, and what may have to wait.
void not_captured(Stream &stream);
void nothing_captured();
// The same of what is waited for with all of a card.
void none_of_card_captured(int card);

void record(Event &event, Stream &stream);
void wait_for(Stream &stream, Event &event);
void begin(Stream &stream, Mode mode);
std::shared_ptr<Graph> end(Stream &stream);
void launch(Executable &executable, Stream &stream);
// Has the stream keep what its graph takes.
void provide(Executable &executable, Stream &stream);
// Ends a stream, whose graphs' memory stays until it is trimmed.
void end_stream(Stream &stream);
void trim_graphs(int card);
size_t of_graphs(int card);

// Of a pool, or of the card alone.
uintptr_t allocate(size_t bytes, Pool *pool);
uintptr_t allocate(size_t bytes, Stream &stream);
void release(uintptr_t address, Stream &stream);

} // namespace card
