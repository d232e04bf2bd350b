//! LSTM, GRU, sLSTM.
