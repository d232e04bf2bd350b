defmodule Sconce.Zoo.Sensor do
  @moduledoc false
  # Networks of sensors and of short texts: {name, task, thousands of parameters of the published code, declaration}.

  import Sconce.Zoo.Blocks

  def networks do
    [
      {:anomaly_detect, "the window again; its error is the anomaly", 5.8,
       input: [5, 32],
       layers:
         conv(16, 3, stride: 2) ++
           conv(32, 3, stride: 2) ++
           conv(24, 3, stride: 2) ++
           [{:upsample, 2}] ++
           conv(16, 3) ++
           [{:upsample, 2}] ++ conv(8, 1) ++ [{:upsample, 2}, {:conv, 5, 3, padding: 1}]},
      {:time_series_forecast, "the next 12 numbers", 146,
       input: [3, 64],
       layers:
         [{:conv, 32, 1}] ++
           dilated(32) ++ [:flatten, {:dense, 64, activation: :relu}, {:dense, 12}]},
      {:sensor_fusion, "6 classes of a motion and 3 further numbers", 27.1,
       inputs: [motion: [6, 32], context: [3]],
       layers: [
         {:inputs,
          motion: conv(32, 5) ++ conv(64, 3) ++ [{:attention, 4}, :global_mean],
          context: [{:dense, 16, activation: :relu}]},
         {:dense, 32, activation: :relu},
         {:dense, 6}
       ]},
      {:health_monitor, "5 states of a heart", 10.5,
       inputs: [ecg: [1, 250], ppg: [1, 100]],
       layers: [
         {:inputs,
          ecg:
            conv(16, 7, stride: 2) ++
              conv(32, 5, stride: 2) ++ conv(32, 3, stride: 2) ++ [:global_mean],
          ppg: conv(16, 7, stride: 2) ++ conv(32, 5, stride: 2) ++ [:global_mean]},
         {:dense, 25, activation: :relu},
         {:dense, 5}
       ]},
      {:fall_detect, "a fall or none", 166,
       input: [6, 64],
       layers:
         conv(32, 5) ++
           [{:max_pool, 2}] ++
           conv(64, 3) ++
           [{:max_pool, 2}] ++
           conv(64, 3) ++ [:flatten, {:dense, 140, activation: :relu}, {:dense, 2}]},
      {:energy_predict, "the next 24 hours", 402,
       input: [4, 96],
       layers:
         [{:conv, 32, 1}] ++
           dilated(32) ++ [:flatten, {:dense, 125, activation: :relu}, {:dense, 24}]},
      {:motor_fault, "5 faults of a motor", 555,
       input: [3, 1024],
       layers:
         conv(32, 7) ++
           [{:max_pool, 2}] ++
           conv(64, 5) ++
           [{:max_pool, 4}] ++
           conv(64, 3) ++ [:flatten, {:dense, 64, activation: :relu}, {:dense, 5}]},
      {:gait_analysis, "6 classes of a gait", 14.8,
       input: [6, 200],
       layers:
         conv(16, 7, stride: 2) ++
           conv(32, 5, stride: 2) ++
           conv(48, 5, stride: 2) ++
           [:global_mean, {:dense, 64, activation: :relu}, {:dense, 6}]},
      {:named_entity, "9 labels of each of 50 tokens", 177,
       input: {:tokens, 50, vocabulary: 5000},
       layers: embed() ++ conv(64, 3) ++ conv(48, 3) ++ [{:conv, 9, 1}]},
      {:text_summarize, "the weight of each of 100 tokens", 186,
       input: {:tokens, 100, vocabulary: 5000},
       layers: embed() ++ conv(48, 3) ++ conv(64, 3) ++ conv(48, 3) ++ [{:conv, 1, 1}]}
    ]
  end
end
