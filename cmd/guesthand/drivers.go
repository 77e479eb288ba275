package main

import (
	"context"

	"github.com/guesthand/guesthand/drivers"
	"github.com/guesthand/guesthand/drivers/cfdriver"
	"github.com/guesthand/guesthand/drivers/embeddeddriver"
	"github.com/guesthand/guesthand/drivers/memdriver"
	"github.com/guesthand/guesthand/drivers/natsdriver"
	"github.com/guesthand/guesthand/drivers/pgdriver"
	"github.com/guesthand/guesthand/drivers/rabbitdriver"
	"github.com/guesthand/guesthand/drivers/redisdriver"
	"github.com/guesthand/guesthand/drivers/sqsdriver"
	"github.com/guesthand/guesthand/host"
	"github.com/guesthand/guesthand/host/config"
)

// openers is the table of drivers: the only place that knows them all.
var openers = map[string]host.Opener{
	"memory": func(ctx context.Context, b config.Broker, o host.OpenOptions) (drivers.Driver, error) {
		return opened(memdriver.Open(ctx, memdriver.Options{Worker: o.Worker, Logger: o.Logger}))
	},
	"nats": func(ctx context.Context, b config.Broker, o host.OpenOptions) (drivers.Driver, error) {
		return opened(natsdriver.Open(ctx, natsdriver.Options{URL: b.URL, Credentials: b.Credentials, User: b.User,
			Password: b.Password, Name: "guesthand " + b.Name, Worker: o.Worker, Logger: o.Logger}))
	},
	"redis": func(ctx context.Context, b config.Broker, o host.OpenOptions) (drivers.Driver, error) {
		return opened(redisdriver.Open(ctx, redisdriver.Options{URL: b.URL, User: b.User, Password: b.Password,
			Name: "guesthand-" + b.Name, Worker: o.Worker, Logger: o.Logger}))
	},
	"postgres": func(ctx context.Context, b config.Broker, o host.OpenOptions) (drivers.Driver, error) {
		p := postgresOptions(b)
		p.Worker, p.Logger = o.Worker, o.Logger
		return opened(pgdriver.Open(ctx, p))
	},
	"embedded": func(ctx context.Context, b config.Broker, o host.OpenOptions) (drivers.Driver, error) {
		return opened(embeddeddriver.Open(ctx, embeddeddriver.Options{Dir: b.Dir, SyncAlways: b.SyncAlways, Sync: b.Sync,
			Listen: b.Listen, User: b.User, Password: b.Password, LockWait: o.LockWait, Worker: o.Worker, Logger: o.Logger}))
	},
	"sqs": func(ctx context.Context, b config.Broker, o host.OpenOptions) (drivers.Driver, error) {
		return opened(sqsdriver.Open(ctx, sqsdriver.Options{Endpoint: b.URL, Region: b.Region, Store: o.Store,
			Worker: o.Worker, Logger: o.Logger}))
	},
	"rabbitmq": func(ctx context.Context, b config.Broker, o host.OpenOptions) (drivers.Driver, error) {
		return opened(rabbitdriver.Open(ctx, rabbitdriver.Options{URL: b.URL, User: b.User, Password: b.Password,
			Name: "guesthand " + b.Name, Worker: o.Worker, Logger: o.Logger}))
	},
	"cloudflare": func(ctx context.Context, b config.Broker, o host.OpenOptions) (drivers.Driver, error) {
		return opened(cfdriver.Open(ctx, cfdriver.Options{URL: b.URL, Account: b.Account, Token: b.Token, Store: o.Store,
			Worker: o.Worker, Logger: o.Logger}))
	},
}

// opened keeps a nil pointer from becoming a driver that is not nil.
func opened[D drivers.Driver](d D, err error) (drivers.Driver, error) {
	if err != nil {
		return nil, err
	}
	return d, nil
}

type driver = drivers.Driver
