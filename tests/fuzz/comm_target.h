#pragma once
// What the libFuzzer programs for messages between ranks, and the tests of their kept inputs, run.
#include "comm/flight_log.h"
#include "comm/member.h"
#include "comm/rendezvous.h"
#include "tests/fuzz/folder.h"

namespace hebb::fuzz {

/// A stream of frames, then the text of one. Those that are read are written and read to the same.
inline bool frames(std::string_view text) {
  is_read([&] {
    FrameReader reader(kLargestHello);
    reader.add(text);
    while (reader.next()) {}
  });
  return is_read([&] {
    std::string bytes(4, '\0');
    const uint32_t length = static_cast<uint32_t>(text.size());
    std::memcpy(bytes.data(), &length, 4);
    FrameReader reader(kLargestFrame);
    reader.add(bytes.append(text));
    const std::optional<Json> frame = reader.next();
    expect(frame.has_value(), "a whole frame is read");
    const std::string& kind = frame_kind(*frame);
    if (kind == "beat") {
      const Beat beat = read_beat(*frame);
      expect(beat_frame(beat).dump() == beat_frame(read_beat(beat_frame(beat))).dump(), "a beat reads back");
      expect(!beat.place().empty() && !beat.collective_text().empty(), "a beat has a text");
    } else if (kind == "member") {
      const Member member = read_member(*frame);
      const Agreement agreement = read_agreement(frame->find("agreement"));
      expect(difference(member, agreement, member, agreement).empty() || member.rank >= agreement.size,
             "a rank agrees with itself");
      Agreement other = agreement;
      other.build += "x";
      expect(!difference(member, agreement, member, other).empty(), "other builds differ");
    } else if (kind == "welcome") {
      read_members(*frame, 2);
    } else {
      const int code = frame_exit_code(*frame);
      expect(code >= 1 && code <= 255, "an exit code of a failure");
      frame_text(*frame, "text");
    }
  });
}

/// RUN/rendezvous.json.
inline bool rendezvous(std::string_view text) {
  const Folder folder(text, {"rendezvous.json"});
  const std::optional<Rendezvous> found = read_rendezvous(folder / "rendezvous.json");
  if (!found) { return false; }
  expect(found->port > 0 && found->port < 65536 && found->secret.size() == 64, "a place to meet");
  const Descriptor held = write_rendezvous(folder / "rendezvous.json", *found);
  const std::optional<Rendezvous> back = read_rendezvous(folder / "rendezvous.json");
  expect(back && back->secret == found->secret && back->addresses.size() == found->addresses.size(), "it reads back");
  return true;
}

}  // namespace hebb::fuzz
