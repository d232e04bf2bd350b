defmodule Sconce.Doctor.RunningTest do
  use ExUnit.Case, async: true

  import Sconce.Test.Scratch, only: [tmp_dir!: 1]

  alias Sconce.Doctor.Running
  alias Sconce.Monitor.Region
  alias Sconce.Monitor.Snapshot.Life

  setup do
    [dir: tmp_dir!("running")]
  end

  test "each VM that runs has its leaders, stores and bots", %{dir: dir} do
    meta = %{kind: "vm", name: "app@here", host: Life.host()}
    {:ok, region} = Region.open(Path.join(dir, "#{System.pid()}-0000000a.vm"), meta, 64)
    leader = ~s({leader=":learner",leads="app@here"})
    other = ~s({leader=":archive",leads="b@there"})

    values = [
      {:gauge, "sconce_servings", "", "", 2},
      {:gauge, "sconce_leader_leading" <> leader, "", "", 1},
      {:gauge, "sconce_leader_term" <> leader, "", "", 7},
      {:gauge, "sconce_leader_members" <> leader, "", "", 3},
      {:gauge, "sconce_leader_granted" <> leader, "", "", 2},
      {:gauge, "sconce_leader_lease_seconds" <> leader, "s", "", 1.5},
      {:gauge, "sconce_leader_leading" <> other, "", "", 0},
      {:gauge, "sconce_leader_term" <> other, "", "", 9},
      {:gauge, ~s(sconce_store_ram_bytes{store="/data"}), "bytes", "", 2.0e6},
      {:gauge, ~s(sconce_store_hit_ratio{store="/data"}), "", "", 0.25},
      {:counter, ~s(sconce_store_damaged_total{store="/data"}), "", "", 1},
      {:counter, ~s(sconce_bot_frames_total{bot="Bot"}), "", "", 3600},
      {:counter, ~s(sconce_bot_late_total{bot="Bot"}), "", "", 4},
      {:counter, ~s(sconce_bot_neutral_total{bot="Bot"}), "", "", 5},
      {:gauge, ~s(sconce_bot_latency_p99_seconds{bot="Bot"}), "s", "", 0.0005}
    ]

    region |> Region.write(values) |> Region.beat()

    assert Running.rows(dir) == [
             {"VM #{System.pid()}", "app@here, 2 servings"},
             {"  bot", "Bot: 3,600 frames, 4 late, 5 neutral, p50 -, p99 500 us"},
             {"  leader", ":archive: follows b@there, term 9"},
             {"  leader", ":learner: leads by 2 of 3 votes, 1.5 s left, term 7"},
             {"  store", "/data: 2.0 MB in RAM, - compressed, - on disk, 25 % hits, 1 damaged"}
           ]
  end

  test "a VM that has ended is left out", %{dir: dir} do
    meta = %{kind: "vm", name: "app", host: Life.host()}
    {:ok, region} = Region.open(Path.join(dir, "#{System.pid()}-0000000a.vm"), meta, 64)
    Region.beat(region, :done)
    assert [{"nothing", _text}] = Running.rows(dir)
    assert [{"nothing", _text}] = Running.rows(Path.join(dir, "missing"))
  end
end
