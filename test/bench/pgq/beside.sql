SELECT pgq.ticker() \watch 0.05
