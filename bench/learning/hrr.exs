# Whether holographic vectors earn a place: a memory as features of a policy, fingerprints of genomes, and descriptors of
# behaviour, each beside the plain way.
#
#     mix run learning/hrr.exs memory | tee learning/hrr_memory.txt
#     mix run learning/hrr.exs fingerprints | tee learning/hrr_fingerprints.txt
#     mix run learning/hrr.exs behaviour | tee learning/hrr_behaviour.txt
#
# `--seeds 1,2` runs some of the five seeds, `--task "8 pairs"` one task of the memory, and `--policy "GLA 64 x 2"` one policy.

for file <- ~w(memory fingerprints behaviour),
    do: Code.require_file("hrr/#{file}.exs", __DIR__)

{opts, [part]} =
  OptionParser.parse!(System.argv(), strict: [seeds: :string, task: :string, policy: :string])

seeds = opts |> Keyword.get(:seeds, "1,2,3,4,5") |> String.split(",")
seeds = for seed <- seeds, do: String.to_integer(seed)
{:ok, _apps} = Application.ensure_all_started(:sconce)

case part do
  "memory" -> HRRMemory.main(seeds, opts[:task], opts[:policy])
  "fingerprints" -> HRRFingerprints.main(seeds)
  "behaviour" -> HRRBehaviour.main(seeds)
end
